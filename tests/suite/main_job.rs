//! The main job on real input: crates of the registry under git, built and tested by the owner,
//! while others read all of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Flavor, Mount, Shell, cargo, flavors, need, run};

flavors! {
    a_real_crate_is_built_while_others_read: passthrough, cached;
    watchers_see_what_the_owner_does: passthrough, cached, ordinary;
}

/// Crates that this project builds on, so that the local registry has them: several hundred
/// files, and dependent on each other alone once optional parts are left out.
const CRATES: [&str; 4] = ["memchr", "aho-corasick", "regex-syntax", "regex-automata"];

/// Where the registry's sources of these crates are.
fn sources() -> Vec<(String, PathBuf)> {
    let mut command = std::process::Command::new(cargo());
    command
        .args(["metadata", "--offline", "--format-version=1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let metadata = run(command, Duration::from_secs(120));
    let metadata: Value = serde_json::from_str(metadata.ok("cargo metadata")).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    CRATES
        .iter()
        .map(|name| {
            let package = packages.iter().find(|p| p["name"] == *name);
            let package = package.unwrap_or_else(|| panic!("{name} is no dependency any more"));
            let manifest = Path::new(package["manifest_path"].as_str().unwrap());
            (name.to_string(), manifest.parent().unwrap().to_owned())
        })
        .collect()
}

/// A crate's manifest that depends on nothing but its neighbours.
fn alone(manifest: &str) -> String {
    let mut manifest: toml::Table = manifest.parse().unwrap();
    for table in [
        "dev-dependencies",
        "target",
        "bench",
        "test",
        "bin",
        "example",
    ] {
        manifest.remove(table);
    }
    let mut dropped = Vec::new();
    if let Some(dependencies) = manifest.get_mut("dependencies") {
        let dependencies = dependencies.as_table_mut().unwrap();
        dependencies.retain(|name, _| {
            let keep = CRATES.contains(&name);
            if !keep {
                dropped.push(name.to_owned());
            }
            keep
        });
        for (name, dependency) in dependencies.iter_mut() {
            let dependency = dependency.as_table_mut().unwrap();
            dependency.remove("version");
            dependency.insert("path".into(), format!("../{name}").into());
        }
    }
    if let Some(features) = manifest.get_mut("features") {
        for (_, feature) in features.as_table_mut().unwrap().iter_mut() {
            feature.as_array_mut().unwrap().retain(|part| {
                let part = part.as_str().unwrap();
                let name = part.strip_prefix("dep:").unwrap_or(part);
                let name = name.split(['/', '?']).next().unwrap();
                !dropped.iter().any(|d| d == name)
            });
        }
    }
    toml::to_string(&manifest).unwrap()
}

/// The crates below `dir`, as a workspace.
fn lay_out(dir: &Path) {
    for (name, source) in sources() {
        let into = dir.join("crates").join(&name);
        std::fs::create_dir_all(&into).unwrap();
        let mut copy = std::process::Command::new("cp");
        copy.args(["-r", "--"]).arg(source.join(".")).arg(&into);
        run(copy, Duration::from_secs(60)).ok("copy a crate");
        let _ = std::fs::remove_file(into.join("Cargo.lock"));
        let manifest = into.join("Cargo.toml");
        std::fs::write(&manifest, alone(&crate::common::text(&manifest))).unwrap();
    }
    let workspace = "[workspace]\nmembers = [\"crates/*\"]\nresolver = \"2\"\n";
    std::fs::write(dir.join("Cargo.toml"), workspace).unwrap();
    std::fs::write(dir.join(".gitignore"), "/target\nCargo.lock\n").unwrap();
}

/// What is looked at while the owner works, each with the same answer for everybody.
const LOOKS: [&str; 4] = [
    "git -C $JOB log --format='%H %s'",
    "git -C $JOB status --porcelain",
    "rg --sort path --count-matches 'fn [a-z_]+' $JOB/crates | sed \"s|$JOB/||\"",
    "tar c --sort=name -C $JOB crates .git/objects | sha256sum",
];

/// Says on its drop that the work is over.
struct Finished<'a>(&'a AtomicBool);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn a_real_crate_is_built_while_others_read(flavor: Flavor) {
    need(&["git", "rg", "tar", "sha256sum", "cc"]);
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    let ground = m.home().join("ground");
    lay_out(&ground);
    let lay = "mkdir $MNT/ws1/job && cp -r ground/. $MNT/ws1/job && \
        cd $MNT/ws1/job && git init -q && git add . && git commit -qm 'Take in the crates' && \
        git -c gc.auto=0 commit -q --allow-empty -m 'Go on' && git ls-files | wc -l";
    let files = m.as_member("c1", lay);
    let files: u32 = files.ok("put it under git").trim().parse().unwrap();
    assert!(files > 200, "only {files} files: not the real job");

    let job = m.ws("ws1/job").display().to_string();
    let look = |who: &str, look: &str| {
        let script = format!("export JOB={job}; {look}");
        let ended = match who {
            "a guest" => m.as_guest(&script),
            window => m.as_member(window, &script),
        };
        ended.ok(&format!("{look} by {who}")).to_owned()
    };
    let truth: Vec<_> = LOOKS.iter().map(|l| look("c1", l)).collect();
    assert_eq!(truth[1], "", "the owner's git status");
    assert!(truth[2].lines().count() > 50, "{}", truth[2]);

    let done = AtomicBool::new(false);
    let build = format!(
        "cd {job} && {cargo} build --offline --workspace && \
         {cargo} test --offline --lib -p regex-syntax -p aho-corasick",
        cargo = cargo()
    );
    let rounds = std::thread::scope(|scope| {
        let readers = ["c2", "a guest"].map(|who| {
            let (look, truth, done) = (&look, &truth, &done);
            scope.spawn(move || {
                let mut rounds = 0;
                // Enough is enough: the owner wants to be done, too.
                while rounds == 0 || rounds < 20 && !done.load(Ordering::Relaxed) {
                    for (what, expected) in LOOKS.iter().zip(truth) {
                        assert_eq!(&look(who, what), expected, "{what} by {who}");
                    }
                    rounds += 1;
                }
                rounds
            })
        });
        let mut command = m.command("bash");
        command.args([
            "-c",
            &format!("echo 0 > $MNT/.panefs/windows/c1/procs && {build}"),
        ]);
        // Whatever comes of it, the readers end.
        let finished = Finished(&done);
        let built = run(command, Duration::from_secs(900));
        drop(finished);
        let said = built.ok("cargo build and cargo test by c1");
        let passed = said.matches("test result: ok").count();
        assert_eq!(passed, 2, "{built}");
        readers.map(|reader| reader.join().unwrap())
    });
    println!("{files} files; rounds of looks meanwhile: {rounds:?}");

    // What was built, everybody gets as the owner does, from the store too.
    let all = "tar c --sort=name -C $JOB . | sha256sum";
    let owner = look("c1", all);
    assert_eq!(look("c2", all), owner, "c2's tar");
    assert_eq!(look("a guest", all), owner, "a guest's tar");
    let view = m.view(None).join("ws1/job").display().to_string();
    let through = m.as_guest(&format!("JOB={view}; {all}"));
    assert_eq!(
        through.ok("tar through a view"),
        owner,
        "tar through a view"
    );
    if !flavor.is_ordinary() {
        let store = m.as_guest(&format!("JOB=$STORE/workspaces/ws1/job; {all}"));
        assert_eq!(store.ok("tar of the store"), owner, "tar of the store");
    }
    // A change of the owner's is everybody's at once.
    m.as_member(
        "c1",
        &format!("cd {job} && echo '// more' >> crates/memchr/src/lib.rs"),
    )
    .ok("change");
    for who in ["c2", "a guest", "c1"] {
        assert_eq!(
            look(who, LOOKS[1]),
            " M crates/memchr/src/lib.rs",
            "git status by {who}"
        );
    }
}

/// An inotifywait on $MNT/ws1/watched.
struct Watch {
    child: Child,
    events: BufReader<std::process::ChildStdout>,
}

impl Watch {
    fn new(m: &Mount, window: Option<&str>) -> Self {
        let join = window.map_or(String::new(), |w| {
            format!("echo 0 > $MNT/.panefs/windows/{w}/procs; ")
        });
        let script = format!(
            "{join}exec inotifywait -m --format '%e %f' -e create,modify,attrib,delete,move,close_write $MNT/ws1/watched 2>&1"
        );
        let mut child = m
            .command("bash")
            .args(["-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut watch = Self {
            events: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        while !watch.line().contains("Watches established") {}
        watch
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.events.read_line(&mut line).unwrap();
        assert_ne!(read, 0, "inotifywait ended");
        line.trim().to_owned()
    }

    /// Every event up to the file `end`. The kernel merges an event with the same one before it
    /// where nobody has read that yet; so all are merged.
    fn seen(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let line = self.line();
            if line == "CREATE end" {
                all.dedup();
                return all;
            }
            all.push(line);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watchers_see_what_the_owner_does(flavor: Flavor) {
    need(&["inotifywait"]);
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    let mut owner = Shell::member(&m, "c1");
    owner.ok("mkdir $MNT/ws1/watched && cd $MNT/ws1/watched && echo old > old");
    let mut watches = [Some("c1"), Some("c2"), None].map(|who| Watch::new(&m, who));
    owner.ok("echo new > file && echo more >> file && mv file moved && chmod 600 moved && rm moved && mkdir dir && rmdir dir && echo x > old && mv old $MNT/ws1/elsewhere && : > end");
    let expected = [
        "CREATE file",
        "MODIFY file",
        "CLOSE_WRITE,CLOSE file",
        "MODIFY file",
        "CLOSE_WRITE,CLOSE file",
        "MOVED_FROM file",
        "MOVED_TO moved",
        "ATTRIB moved",
        "DELETE moved",
        "CREATE,ISDIR dir",
        "DELETE,ISDIR dir",
        "MODIFY old",
        "CLOSE_WRITE,CLOSE old",
        "MOVED_FROM old",
    ];
    let [by_owner, by_member, by_guest] = watches.each_mut().map(Watch::seen);
    assert_eq!(by_member, by_owner, "what a member of c2 sees");
    assert_eq!(by_guest, by_owner, "what a guest sees");
    assert_eq!(by_owner, expected, "what the owner sees");
}
