//! Values of words and keys: durations, sizes, switches, owners.

use std::time::Duration;

use crate::model::{Owner, Refusal, Rule, parse_bytes};

/// The refusal of a value that is spelled wrong.
pub fn invalid(key: &str, text: &str, example: &str) -> Refusal {
    Refusal::new(
        Rule::ArgumentInvalid,
        format!("{text:?} is no value of {key}"),
        format!("Give {key} as {example}."),
    )
}

/// `30s`, `7d`, `1h 30m`; a bare number means seconds.
pub fn duration(key: &str, text: &str) -> Result<Duration, Refusal> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    humantime::parse_duration(text).map_err(|_| invalid(key, text, "30s, 10m, 12h or 7d"))
}

/// `10GiB`, `500MB`, or a number of bytes.
pub fn size(key: &str, text: &str) -> Result<u64, Refusal> {
    parse_bytes(text).ok_or_else(|| invalid(key, text, "10GiB, 500MB or a number of bytes"))
}

/// A count of things.
pub fn count(key: &str, text: &str) -> Result<u64, Refusal> {
    text.parse()
        .map_err(|_| invalid(key, text, "a whole number"))
}

/// `true` or `false`.
pub fn switch(key: &str, text: &str) -> Result<bool, Refusal> {
    text.parse()
        .map_err(|_| invalid(key, text, "true or false"))
}

/// A process or thread id; 0 stands for the writer.
pub fn process(key: &str, text: &str) -> Result<u32, Refusal> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain
        .then(|| text.parse().ok())
        .flatten()
        .filter(|pid| i32::try_from(*pid).is_ok())
        .ok_or_else(|| invalid(key, text, "a process id, or 0 for the writer"))
}

/// `UID` or `UID:GID`; a user's own group where none is given.
pub fn owner(key: &str, text: &str) -> Result<Owner, Refusal> {
    let refuse = || invalid(key, text, "UID or UID:GID, in numbers");
    let id = |text: &str| {
        text.parse()
            .ok()
            .filter(|id| *id != u32::MAX)
            .ok_or_else(refuse)
    };
    match text.split_once(':') {
        Some((uid, gid)) => Ok(Owner {
            uid: id(uid)?,
            gid: id(gid)?,
        }),
        None => {
            let uid = id(text)?;
            let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
            Ok(Owner {
                uid,
                gid: user.map_or(uid, |user| user.gid.as_raw()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_switches_and_pids() {
        assert_eq!(duration("t", "90").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("t", "1m 30s").unwrap(), Duration::from_secs(90));
        assert!(duration("t", "soon").is_err());
        assert_eq!(size("bytes", "1KiB").unwrap(), 1024);
        assert!(size("bytes", "much").is_err());
        assert!(switch("keep", "yes").is_err());
        assert_eq!(process("pid", "0").unwrap(), 0);
        for text in ["", "-1", "+1", "1 ", "x", "4294967295", "99999999999"] {
            assert!(process("pid", text).is_err(), "{text}");
        }
        let owner = owner("owner", "5:6").unwrap();
        assert_eq!((owner.uid, owner.gid), (5, 6));
        assert!(super::owner("owner", "root").is_err());
    }
}
