//! A workspace is a directory like any other: what a program does there has the outcome that it
//! has on the disk beneath.

use std::time::Duration;

use crate::common::{Agent, Flavor, Mount, flavors, run, text};

flavors! {
    a_mapping_of_a_file_made_for_appending_stores_in_place: passthrough, cached, ordinary;
    who_stops_appending_writes_where_it_says: cached, ordinary;
    a_link_opens_whatever_became_of_the_other_links_directory: passthrough, ordinary;
    a_directory_may_be_thousands_deep: passthrough, ordinary;
}

/// O_APPEND is about write(2): what a mapping stores stays where it was stored. (The daemon's
/// own descriptor must not append, or the page goes to the end of the file.)
fn a_mapping_of_a_file_made_for_appending_stores_in_place(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut owner = Agent::member(&m, "c1");
    owner.ok("
p = MNT + '/ws1/log'
fd = os.open(p, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
os.write(fd, b'0123456789')
m = mmap.mmap(fd, 10)
m[0:1] = b'M'
m.flush()
m.close()
os.close(fd)");
    let content = owner.ok("read(p).decode()");
    assert_eq!(content, "M123456789", "stored in place");
}

/// The same for a descriptor that stops appending by F_SETFL. (With passthrough the kernel keeps
/// what the backing file was opened with.)
fn who_stops_appending_writes_where_it_says(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut owner = Agent::member(&m, "c1");
    owner.ok("
import fcntl
p = MNT + '/ws1/log'
fd = os.open(p, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
os.write(fd, b'0123456789')
fcntl.fcntl(fd, fcntl.F_SETFL, 0)
os.pwrite(fd, b'W', 0)
os.close(fd)");
    let content = owner.ok("read(p).decode()");
    assert_eq!(content, "W123456789", "written at the offset");
}

/// Both names are of one file, and each is reached by its own way.
fn a_link_opens_whatever_became_of_the_other_links_directory(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut owner = Agent::member(&m, "c1");
    owner.ok("
W = MNT + '/ws1'
os.mkdir(W + '/a'); os.mkdir(W + '/b')
write(W + '/a/f', 'both'); os.link(W + '/a/f', W + '/b/f')
read(W + '/b/f'); read(W + '/a/f')
os.chmod(W + '/a', 0)");
    let content = owner.eval("read(W + '/b/f').decode()");
    owner.ok("os.chmod(W + '/a', 0o755)");
    assert_eq!(content.unwrap(), "both", "read by the other name");
}

/// As deep as one likes, by one step at a time; and nobody else notices.
fn a_directory_may_be_thousands_deep(flavor: Flavor) {
    const DEPTH: u32 = 8000;
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let script = "import os, sys
os.chdir(os.environ['MNT'] + '/ws1')
for _ in range(int(sys.argv[1])):
    os.mkdir('d'); os.chdir('d')
open('leaf', 'w').write('deep down')
# More directories than the daemon keeps descriptors of.
W = os.environ['MNT'] + '/ws1'
for i in range(700):
    os.mkdir(f'{W}/{i}'); os.listdir(f'{W}/{i}')
fd = os.open('leaf', os.O_RDWR)
os.rename('leaf', 'other')
print(os.read(fd, 20).decode(), os.listdir('.'))";
    let mut command = m.command("bash");
    command.args([
        "-c",
        "echo 0 > $MNT/.panefs/windows/c1/procs && exec python3 -c \"$1\" $2",
        "bash",
        script,
    ]);
    command.arg(DEPTH.to_string());
    let said = run(command, Duration::from_secs(300));
    let lived = m.daemon().is_some();
    // What is known of it is let go without going as deep, too.
    if lived {
        m.unmount();
        // Before anything that may panic: who removes the temporary directory goes deep.
        m.as_guest("rm -rf $STORE/workspaces/ws1/d");
    }
    let log = text(m.store().join("panefs.log"));
    assert!(!log.contains("overflow"), "the daemon ended badly: {log}");
    assert_eq!(said.ok("work deep down").trim(), "deep down ['other']");
    assert!(lived, "the daemon has ended: {log}");
}
