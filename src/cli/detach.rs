//! Taking a mount away whose daemon can't do so itself.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, umount2};

use super::failure::{Failure, Outcome};
use super::locate::quote;

/// Unmounts at once; processes that are still inside keep what they have open.
pub fn detach(point: &Path) -> Outcome {
    let Err(errno) = umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) else {
        return Ok(());
    };
    let helped = super::doctor::fusermount().is_some_and(|helper| {
        Command::new(helper)
            .args(["-u", "-z", "-q", "--"])
            .arg(point)
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    if helped {
        return Ok(());
    }
    Err(Failure::new(
        format!("cannot unmount {}: {}", point.display(), errno.desc()),
        format!(
            "Ask its owner or root to run: fusermount3 -u -z {}",
            quote(point)
        ),
    ))
}
