//! What a hook's process becomes, executed by the kernel and by nobody else.
//!
//! The standard library executes as `execvp(3)` does, which hands to `/bin/sh` whatever the kernel takes for no program:
//! a file that was cut off, or one for another machine, would be read as commands.

use std::{
    ffi::{CString, OsStr},
    io,
    os::unix::ffi::OsStrExt as _,
    process::Command,
    ptr,
};

/// The program, its arguments and its environment in the form that the kernel wants, ready before the fork.
pub(super) struct Image {
    program: CString,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    /// What the two lists point into.
    _texts: Vec<CString>,
}

#[expect(unsafe_code, reason = "pointers are not known to be sendable")]
// SAFETY: the pointers lead into texts that move with them, and that nobody changes.
unsafe impl Send for Image {}
#[expect(unsafe_code, reason = "pointers are not known to be shareable")]
// SAFETY: as above; all access is reading.
unsafe impl Sync for Image {}

impl Image {
    /// Of a command whose environment was cleared and then set.
    pub(super) fn of(command: &Command) -> io::Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|err| io::Error::other(err.to_string()));
        let program = text(command.get_program().as_bytes())?;
        let mut texts = vec![program.clone()];
        for argument in command.get_args() {
            texts.push(text(argument.as_bytes())?);
        }
        let count = texts.len();
        for (name, value) in command.get_envs() {
            let value = value.unwrap_or(OsStr::new(""));
            texts.push(text(&[name.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
        let listed = |texts: &[CString]| -> Vec<_> {
            let pointers = texts.iter().map(|text| text.as_ptr());
            pointers.chain([ptr::null()]).collect()
        };
        Ok(Self {
            program,
            arguments: listed(&texts[..count]),
            environment: listed(&texts[count..]),
            _texts: texts,
        })
    }

    /// Becomes it. Returns only with why it could not.
    pub(super) fn exec(&self) -> io::Error {
        #[expect(unsafe_code, reason = "no safe wrapper executes without a search or a shell")]
        // SAFETY: all are texts that end with a zero, and lists that end with a null, and live as long as this.
        unsafe {
            libc::execve(
                self.program.as_ptr(),
                self.arguments.as_ptr(),
                self.environment.as_ptr(),
            );
        }
        io::Error::last_os_error()
    }
}
