//! Attributes, as users see them.

/// How long the kernel may believe a name or attributes without asking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// Until the kernel itself changes it: the mount is the only way in.
    UntilChanged,
    /// Not at all.
    Never,
}

/// What stat(2) shows.
#[derive(Debug, Clone, Copy)]
pub struct Attr {
    /// Inode number, which is the node id too, but for the root's.
    pub ino: u64,
    /// File type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device, of a device node.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Preferred block size.
    pub blksize: u32,
    /// Last access, seconds and nanoseconds since the epoch.
    pub atime: (i64, i64),
    /// Last change of content.
    pub mtime: (i64, i64),
    /// Last change of attributes.
    pub ctime: (i64, i64),
}

impl Attr {
    /// Attributes of a backing file under the number `ino`.
    pub fn from_stat(ino: u64, stat: &libc::stat) -> Self {
        // Linux encodes a dev_t of 12 + 20 bits in 32 bits on the FUSE wire.
        let (major, minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
        Self {
            ino,
            mode: stat.st_mode,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
            size: stat.st_size.try_into().unwrap_or(0),
            blocks: stat.st_blocks.try_into().unwrap_or(0),
            blksize: stat.st_blksize.try_into().unwrap_or(4096),
            atime: (stat.st_atime, stat.st_atime_nsec),
            mtime: (stat.st_mtime, stat.st_mtime_nsec),
            ctime: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// A name's answer to a lookup.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The number by which the kernel asks from now on.
    pub nodeid: u64,
    /// Which life of that number.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
    /// How long the name may be believed.
    pub entry_ttl: Ttl,
    /// How long the attributes may be believed.
    pub attr_ttl: Ttl,
}
