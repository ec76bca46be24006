//! Where a test makes the disk fail: every system call of the spool that writes asks here first.
//!
//! Only the cargo feature `faults`, which nothing but the tests sets, puts anything behind the question; without it
//! every function here is empty and compiled away.
//!
//! With it, `AIROUTER_FAULTS` says what fails: entries `OPERATION:NAME:WHICH:ERROR`, separated by commas or blanks.
//!
//! | part | what it is |
//! |---|---|
//! | `OPERATION` | `write`, `short` (half of a write, then the error), `fsync` (also fdatasync), `dirsync`, `rename`, `unlink`, `create`, `mkdir`, `allocate`, `truncate`, `read` |
//! | `NAME` | the file's own name (a temporary file's is the one it will get; a folder's for `dirsync`; the new one for `rename`), `*` standing for any text and `?` for one byte |
//! | `WHICH` | the how-manieth time in this process, from 1, such as `3`; with `+`, from then on |
//! | `ERROR` | an errno's name such as `EIO`, or `KILL`: the process dies by SIGKILL before the operation |
//!
//! The daemon gives the variable to its executors, which count for themselves. The programs never see it.

#[cfg(feature = "faults")]
mod injected;

use std::ffi::OsStr;
use std::io;

/// What is about to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "faults"), allow(dead_code))]
pub(crate) enum Op {
    Write,
    Short,
    Fsync,
    DirSync,
    Rename,
    Unlink,
    Create,
    MakeDir,
    Allocate,
    Truncate,
    Read,
}

/// Fails if a test wants the operation on that name to fail.
#[inline(always)]
pub(crate) fn check(op: Op, name: impl AsRef<OsStr>) -> io::Result<()> {
    #[cfg(feature = "faults")]
    return injected::next(op, name.as_ref()).map_or(Ok(()), Err);
    #[cfg(not(feature = "faults"))]
    {
        let _ = (op, name);
        Ok(())
    }
}
