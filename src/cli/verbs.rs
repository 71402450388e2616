//! The control protocol's verbs as commands: one table.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, builder::PossibleValuesParser};

use super::control::{Channel, Command, Reply};
use super::failure::{Failure, Outcome};
use super::{Global, jobs, say};

/// A verb of the control protocol.
#[derive(Debug)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    about: &'static str,
    words: &'static [Word],
    keys: &'static [Key],
    /// Whether any further words and `key=value` pairs may follow.
    open: bool,
}

/// A word after the verb.
#[derive(Debug)]
struct Word {
    name: &'static str,
    help: &'static str,
    required: bool,
}

/// A `key=value` pair.
#[derive(Debug)]
struct Key {
    /// In the protocol.
    name: &'static str,
    /// As an option.
    long: &'static str,
    help: &'static str,
    takes: Takes,
}

/// What an option takes.
#[derive(Debug)]
enum Takes {
    /// A value, shown as this.
    One(&'static str),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Nothing, or `=true`, `=false`.
    Flag,
    /// `K=V`, any number of times: each is the key `name.K`.
    Pairs,
}

const fn word(name: &'static str, help: &'static str) -> Word {
    Word {
        name,
        help,
        required: true,
    }
}

const fn maybe(name: &'static str, help: &'static str) -> Word {
    Word {
        name,
        help,
        required: false,
    }
}

const fn key(name: &'static str, value: &'static str, help: &'static str) -> Key {
    spelled(name, name, value, help)
}

const fn spelled(
    name: &'static str,
    long: &'static str,
    value: &'static str,
    help: &'static str,
) -> Key {
    Key {
        name,
        long,
        help,
        takes: Takes::One(value),
    }
}

const fn one_of(name: &'static str, values: &'static [&'static str], help: &'static str) -> Key {
    Key {
        name,
        long: name,
        help,
        takes: Takes::OneOf(values),
    }
}

const fn flag(name: &'static str, help: &'static str) -> Key {
    Key {
        name,
        long: name,
        help,
        takes: Takes::Flag,
    }
}

const fn verb(
    name: &'static str,
    about: &'static str,
    words: &'static [Word],
    keys: &'static [Key],
) -> Verb {
    Verb {
        name,
        about,
        words,
        keys,
        open: false,
    }
}

const fn open(name: &'static str, about: &'static str, words: &'static [Word]) -> Verb {
    Verb {
        name,
        about,
        words,
        keys: &[],
        open: true,
    }
}

const WINDOW: Word = maybe(
    "WINDOW",
    "The window, c1, c2, …; inside a window it means that one",
);
const WINDOW_NEEDED: Word = word("WINDOW", "The window: c1, c2, …");
const WORKSPACE: Word = word("WORKSPACE", "The workspace: ws1, ws2, …");
const EITHER: Word = maybe(
    "WINDOW|WORKSPACE",
    "c1 or ws1; inside a window it means that one",
);
const JOB: Word = word("JOB", "The job, as a reply named it");
const PROCESS: [Key; 3] = [
    key("pid", "PID", "A process, with what it starts"),
    key("tid", "TID", "One thread"),
    key(
        "cgroup",
        "PATH",
        "A control group under /sys/fs/cgroup, with all below it",
    ),
];

/// Every verb, the everyday ones first.
pub const VERBS: &[Verb] = &[
    verb(
        "allocate",
        "Open a window and give it a workspace of its own; prints the workspace's path",
        &[maybe(
            "WINDOW",
            "The window, c1, c2, …; left out: the next free number",
        )],
        &[
            key("title", "TITLE", "The task in 1 to 20 characters"),
            key(
                "owner",
                "UID[:GID]",
                "Who owns the workspace and the window's control files",
            ),
            key(
                "definition",
                "NAME",
                "Take a prepared workspace, made by this recipe",
            ),
            key("project", "PATH", "The project whose definitions are meant"),
            Key {
                name: "param",
                long: "param",
                help: "A parameter of the definition; also --param.K V",
                takes: Takes::Pairs,
            },
            spelled(
                "quota.bytes",
                "quota-bytes",
                "SIZE",
                "The most that it may hold: 10GiB",
            ),
            spelled(
                "quota.files",
                "quota-files",
                "COUNT",
                "The most files and directories",
            ),
            key("visibility", "private", "Hide its files from other windows"),
            flag("keep", "Let no sweep take it, however old"),
        ],
    ),
    verb(
        "handoff",
        "Make a new window the holder of the same workspace, in place",
        &[
            maybe("FROM", "The holder; inside a window it means that one"),
            maybe("TO", "The new window; left out: the next free number"),
        ],
        &[
            one_of(
                "mode",
                &["refuse", "wait", "fence"],
                "What to do about files that are still open for writing",
            ),
            one_of(
                "members",
                &["keep", "move", "end"],
                "What becomes of the holder's processes: stay its, become the new window's, end",
            ),
            key("timeout", "TIME", "How long it may wait or drain: 30s"),
            key("title", "TITLE", "The new window's task"),
        ],
    ),
    verb(
        "release",
        "End a window; its workspace keeps the files, without a holder",
        &[WINDOW],
        &[one_of(
            "members",
            &["keep", "end"],
            "What becomes of its processes",
        )],
    ),
    verb(
        "reclaim",
        "Take a workspace out of the tree; the trash keeps the files for a while",
        &[word("WINDOW|WORKSPACE", "c1 or ws1")],
        &[
            flag("force", "Also from a live holder"),
            flag("purge", "And delete the files now"),
        ],
    ),
    verb(
        "restore",
        "Bring a reclaimed workspace back from the trash",
        &[WORKSPACE],
        &[],
    ),
    verb(
        "purge",
        "Delete a reclaimed workspace's files now",
        &[WORKSPACE],
        &[],
    ),
    verb(
        "expire",
        "Reclaim released workspaces that are old, release windows that are idle",
        &[],
        &[
            spelled(
                "older_than",
                "older-than",
                "TIME",
                "Workspaces released longer ago: 7d",
            ),
            key(
                "idle",
                "TIME",
                "Windows without members and changes for so long: 7d",
            ),
            flag(
                "unsaved",
                "Also workspaces with git work that exists nowhere else",
            ),
        ],
    ),
    verb(
        "path",
        "Print where a window or a workspace is",
        &[EITHER],
        &[],
    ),
    verb(
        "show",
        "Show everything about one window, workspace or job",
        &[maybe(
            "WINDOW|WORKSPACE|JOB",
            "c1, ws1 or a job; inside a window it means that one",
        )],
        &[],
    ),
    verb(
        "list",
        "List windows, workspaces, members, jobs or sessions",
        &[word(
            "WHAT",
            "windows, workspaces, members, jobs or sessions",
        )],
        &[key("state", "STATE", "Only those in this state")],
    ),
    verb(
        "bind",
        "Make a process, thread or control group a member of a window",
        &[WINDOW_NEEDED],
        &PROCESS,
    ),
    verb("unbind", "Undo a bind", &[], &PROCESS),
    verb(
        "quota",
        "Show or set a workspace's limits",
        &[EITHER],
        &[
            key("bytes", "SIZE|none", "The most that it may hold: 10GiB"),
            key("files", "COUNT|none", "The most files and directories"),
        ],
    ),
    verb(
        "wait",
        "Wait for a job's end",
        &[JOB],
        &[key("timeout", "TIME", "Wait no longer than this: 30s")],
    ),
    verb(
        "cancel",
        "Stop a job",
        &[JOB],
        &[key("timeout", "TIME", "How long it may take to stop: 30s")],
    ),
    verb(
        "refresh",
        "Read a workspace's files anew, after a change behind the mount's back",
        &[WORKSPACE],
        &[],
    ),
    verb(
        "share",
        "Let windows see a private workspace",
        &[WORKSPACE],
        &[key("with", "WINDOWS", "c1,c2, or all, or none")],
    ),
    verb(
        "activity",
        "Show who works in a workspace",
        &[WORKSPACE],
        &[],
    ),
    verb(
        "cd",
        "Change a window's recorded working directory",
        &[
            WINDOW,
            maybe("PATH", "Where to; left out: the workspace's top"),
        ],
        &[],
    ),
    verb(
        "ensure",
        "Make sure that a window's working directory exists",
        &[WINDOW],
        &[],
    ),
    verb(
        "definitions",
        "List a project's recipes for prepared workspaces",
        &[],
        &[
            key("project", "PATH", "The project"),
            flag("check", "Say what is wrong with them"),
        ],
    ),
    open(
        "run",
        "Run a command of a workspace's definition",
        &[
            word("WINDOW|WORKSPACE", "c1 or ws1"),
            word("COMMAND", "Its name in the definition"),
        ],
    ),
    verb(
        "resolve",
        "Settle a workspace whose state is unknown",
        &[WORKSPACE, word("STATE", "occupied, available or removed")],
        &[],
    ),
    open("index", "Index a workspace's code for navigation", &[]),
    open("map", "Show a workspace's code from above", &[]),
    open("find", "Find symbols and files in a workspace", &[]),
    open("expand", "Show a symbol's neighbours", &[]),
    open("context", "Gather what belongs to a symbol", &[]),
];

impl Verb {
    /// The verb with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        VERBS.iter().find(|verb| verb.name == name)
    }

    /// Its command line.
    pub fn command(&self) -> clap::Command {
        let mut command = clap::Command::new(self.name).about(self.about);
        for word in self.words {
            command = command.arg(Arg::new(word.name).help(word.help).required(word.required));
        }
        if self.open {
            let rest = Arg::new(REST)
                .value_name("WORD|KEY=VALUE")
                .help("Further words and keys")
                .num_args(0..);
            command = command.arg(rest);
        }
        for key in self.keys {
            command = command.arg(key.arg());
        }
        if matches!(
            self.name,
            "allocate" | "handoff" | "run" | "cancel" | "expire"
        ) {
            command = command.arg(
                Arg::new(NO_WAIT)
                    .long("no-wait")
                    .help("Where it takes long, print the job and return")
                    .action(ArgAction::SetTrue),
            );
        }
        command
    }

    /// What the arguments say, as the protocol wants it.
    fn request(&self, matches: &ArgMatches) -> Outcome<Command> {
        let text = |id| matches.get_one::<String>(id).cloned();
        let words: Vec<String> = self.words.iter().filter_map(|w| text(w.name)).collect();
        let rest = self
            .open
            .then(|| matches.get_many::<String>(REST))
            .flatten();
        let (pairs, more): (Vec<&String>, Vec<&String>) = rest
            .into_iter()
            .flatten()
            .partition(|word| word.contains('='));
        let mut command = Command::new(
            self.name,
            words.into_iter().chain(more.into_iter().cloned()),
        );
        for pair in pairs {
            set_pair(&mut command, "", pair)?;
        }
        for key in self.keys {
            if matches!(key.takes, Takes::Pairs) {
                for pair in matches.get_many::<String>(key.name).into_iter().flatten() {
                    set_pair(&mut command, &format!("{}.", key.name), pair)?;
                }
            } else if let Some(value) = text(key.name) {
                command.set(key.name, &value);
            }
        }
        Ok(command)
    }

    /// Asks the mount, waits where it takes long, and shows the answer.
    pub fn run(&self, matches: &ArgMatches, global: &Global) -> Outcome {
        let mount = global.mount()?;
        let mut channel = Channel::open(&mount)?;
        let mut reply = channel.ask(&self.request(matches)?)?;
        let no_wait = matches.try_get_one(NO_WAIT).ok().flatten() == Some(&true);
        if !no_wait {
            let timeout = (self.name == "wait").then(|| matches.get_one::<String>("timeout"));
            reply = jobs::wait(&mut channel, &mount, reply, timeout.flatten())?;
        }
        finish(self.name, &reply, global, &mount)
    }
}

/// Shows a reply; a refusal becomes the failure.
pub fn finish(verb: &str, reply: &Reply, global: &Global, mount: &super::locate::Mount) -> Outcome {
    if global.json {
        println!("{}", reply.line);
    }
    if let Some(refused) = Failure::of_reply(&reply.value) {
        return Err(refused);
    }
    if !global.json {
        say::reply(verb, &reply.value, mount);
    }
    Ok(())
}

const REST: &str = "rest";
const NO_WAIT: &str = "no-wait";

impl Key {
    fn arg(&self) -> Arg {
        let arg = Arg::new(self.name).long(self.long).help(self.help);
        let arg = if self.name == self.long {
            arg
        } else {
            // As the protocol spells it.
            arg.alias(self.name)
        };
        match self.takes {
            Takes::One(value) => arg.value_name(value),
            Takes::OneOf(values) => arg.value_parser(PossibleValuesParser::new(values)),
            Takes::Flag => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_name("true|false"),
            Takes::Pairs => arg.value_name("K=V").action(ArgAction::Append),
        }
    }
}

fn set_pair(command: &mut Command, prefix: &str, pair: &str) -> Outcome {
    match pair.split_once('=') {
        Some((key, value)) if !matches!(key, "" | "verb" | "args") => {
            command.set(&format!("{prefix}{key}"), value);
            Ok(())
        }
        _ => Err(Failure::usage(
            format!("{pair:?} is not KEY=VALUE"),
            "Write it as KEY=VALUE.",
        )),
    }
}

/// Reads `--param.K V` and `--param.K=V` as `--param K=V`.
pub fn spell_params(args: Vec<OsString>) -> Vec<OsString> {
    let mut out = Vec::with_capacity(args.len());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            out.push(arg);
            out.extend(args);
            return out;
        }
        let Some(pair) = arg.to_str().and_then(|text| text.strip_prefix("--param.")) else {
            out.push(arg);
            continue;
        };
        out.push("--param".into());
        let mut pair = OsString::from(pair);
        if !pair.to_string_lossy().contains('=')
            && let Some(value) = args.next()
        {
            pair.push("=");
            pair.push(value);
        }
        out.push(pair);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: &[&str]) -> Outcome<Command> {
        let args = spell_params(args.iter().map(OsString::from).collect());
        let matches = super::super::command()
            .try_get_matches_from(std::iter::once("panefs".into()).chain(args));
        let matches = matches.map_err(|e| Failure::usage(e.to_string(), ""))?;
        let (name, sub) = matches.subcommand().unwrap();
        Verb::named(name).unwrap().request(sub)
    }

    #[test]
    fn options_become_keys_however_they_are_spelled() {
        let mut wanted = Command::new("allocate", ["c7".to_owned()]);
        wanted.set("title", "fix login");
        wanted.set("quota.bytes", "10GiB");
        wanted.set("param.image", "a=b");
        wanted.set("keep", "true");
        for spelling in [
            ["--quota-bytes", "10GiB", "--param", "image=a=b", "--keep"],
            [
                "--quota.bytes",
                "10GiB",
                "--param.image",
                "a=b",
                "--keep=true",
            ],
        ] {
            let args: Vec<&str> = ["allocate", "c7", "--title", "fix login"]
                .into_iter()
                .chain(spelling)
                .collect();
            assert_eq!(request(&args).unwrap(), wanted);
        }
    }

    #[test]
    fn words_may_be_left_out_inside_a_window() {
        assert_eq!(request(&["handoff"]).unwrap(), Command::new("handoff", []));
        let two = ["c1", "c2"].map(str::to_owned);
        assert_eq!(
            request(&["handoff", "c1", "c2"]).unwrap(),
            Command::new("handoff", two)
        );
        assert!(request(&["bind", "--pid", "1"]).is_err());
    }

    #[test]
    fn a_definitions_command_gets_its_own_keys() {
        let mut wanted = Command::new("run", ["c1", "build", "fast"].map(str::to_owned));
        wanted.set("target", "x=y");
        assert_eq!(
            request(&["run", "c1", "build", "target=x=y", "fast"]).unwrap(),
            wanted
        );
        assert!(request(&["run", "c1", "build", "verb=reclaim"]).is_err());
    }
}
