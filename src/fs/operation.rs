//! Every operation of the filesystem, classified once.

/// What an operation does to a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It reads: everybody may.
    Reads,
    /// It changes names or attributes: judged by the caller.
    ChangesByCaller,
    /// It changes data through an open handle: judged by the handle's opening.
    ChangesByHandle,
    /// It depends on its flags: an open, or an access check.
    ByFlags,
}

macro_rules! operations {
    ($($name:ident $label:literal $effect:ident),+ $(,)?) => {
        /// One request of the kernel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Operation {
            $(#[doc = concat!("`", $label, "`")] $name,)+
        }

        impl Operation {
            /// Every operation.
            pub const ALL: &'static [Operation] = &[$(Self::$name),+];

            /// Its name in metrics, events and logs.
            pub fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// What it does.
            pub fn effect(self) -> Effect {
                match self { $(Self::$name => Effect::$effect,)+ }
            }
        }
    };
}

operations! {
    Lookup "lookup" Reads,
    Forget "forget" Reads,
    Getattr "getattr" Reads,
    Setattr "setattr" ChangesByCaller,
    Readlink "readlink" Reads,
    Mknod "mknod" ChangesByCaller,
    Mkdir "mkdir" ChangesByCaller,
    Unlink "unlink" ChangesByCaller,
    Rmdir "rmdir" ChangesByCaller,
    Symlink "symlink" ChangesByCaller,
    Rename "rename" ChangesByCaller,
    Link "link" ChangesByCaller,
    Open "open" ByFlags,
    Read "read" Reads,
    Write "write" ChangesByHandle,
    Flush "flush" Reads,
    Release "release" Reads,
    Fsync "fsync" Reads,
    Opendir "opendir" Reads,
    Readdir "readdir" Reads,
    Readdirplus "readdirplus" Reads,
    Releasedir "releasedir" Reads,
    Fsyncdir "fsyncdir" Reads,
    Statfs "statfs" Reads,
    Setxattr "setxattr" ChangesByCaller,
    Getxattr "getxattr" Reads,
    Listxattr "listxattr" Reads,
    Removexattr "removexattr" ChangesByCaller,
    Access "access" ByFlags,
    Create "create" ChangesByCaller,
    Ioctl "ioctl" ByFlags,
    Fallocate "fallocate" ChangesByHandle,
    Lseek "lseek" Reads,
    CopyFileRange "copy_file_range" ChangesByHandle,
}

/// Whether an open with these flags may change the file, judged as a whole.
pub fn opens_for_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_judged_as_a_whole() {
        assert!(!opens_for_writing(libc::O_RDONLY | libc::O_CLOEXEC));
        assert!(!opens_for_writing(libc::O_RDONLY | libc::O_CREAT));
        assert!(opens_for_writing(libc::O_RDONLY | libc::O_TRUNC));
        assert!(opens_for_writing(libc::O_WRONLY));
        assert!(opens_for_writing(libc::O_RDWR));
        // The access mode 3 means "neither read nor write, but ioctl"; the kernel wants both rights.
        assert!(opens_for_writing(3));
    }

    #[test]
    fn labels_are_unique() {
        let mut labels: Vec<_> = Operation::ALL.iter().map(|o| o.label()).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Operation::ALL.len());
    }
}
