//! The help texts, from the table of verbs.

use std::fmt::Write;

use super::verb::{VERBS, Verb};

const ROOT: &str = "\
panefs control file: write commands, read one JSON line for each.

  exec 3<>MNT/.panefs/ctl; echo 'allocate c7 title=\"fix login\"' >&3; head -n1 <&3

A command is one line: a verb, words and key=value pairs, quoted as a shell quotes, or a JSON
object with \"verb\", \"args\" and the keys. Lines that begin with # are ignored. A refused command
fails the write, changes nothing, and says why in its reply and what to do next.

";

const WINDOW: &str = "\
The control file of one window: write commands about it, read one JSON line for each.

  exec 3<>MNT/.panefs/self/ctl; echo 'path' >&3; head -n1 <&3

The window itself may be left out of a command: it is meant. Other windows can be looked at only.

";

/// The help text of the root's control file, or of a window's.
pub fn text(for_window: bool) -> String {
    let mut text = if for_window { WINDOW } else { ROOT }.to_owned();
    for verb in VERBS.iter().filter(|verb| !(for_window && verb.owner_only)) {
        text.push_str(&about(verb));
    }
    if !for_window {
        text.push_str("\n† not for windows, nor for their members: the mount owner's alone.\n");
    }
    text
}

/// One verb's lines.
pub fn about(verb: &Verb) -> String {
    let mut text = String::new();
    let dagger = if verb.owner_only { " †" } else { "" };
    // Writing to a string doesn't fail.
    let _ = writeln!(text, "{}{dagger}\n    {}", verb.synopsis(), verb.about);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_what_it_may_do() {
        assert!(text(false).contains("\nallocate [cN]"));
        assert!(!text(true).contains("\nallocate"));
        assert!(text(true).contains("\nhandoff cA"));
        for verb in VERBS {
            assert!(text(false).contains(verb.about), "{}", verb.name);
        }
    }
}
