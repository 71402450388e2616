//! Black-box tests: the real binary, real mounts, real tools. One crate, so that the ground is
//! compiled once and tests that measure can keep the others out.

#![cfg(test)]

mod common;

mod bad_input;
mod coherence;
mod crash;
mod fidelity;
mod first_session;
mod handoff;
mod harness_node;
mod main_job;
mod members;
mod refusals;
mod scale;
mod scenarios;
mod users;
