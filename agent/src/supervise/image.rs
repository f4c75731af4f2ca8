//! What a hook's process becomes, executed by the kernel and by nobody else.
//!
//! `execvp(3)`, and so the standard library, hands to `/bin/sh` whatever the kernel takes for no program: a file that was cut
//! off, or one for another machine, would be read as commands.

use std::{collections::BTreeMap, ffi::CString, io, ptr};

use rustix::io::Errno;

/// The arguments and the environment in the form that the kernel wants, ready before the fork.
pub(super) struct Image {
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    /// What the two lists point into.
    _texts: [Vec<CString>; 2],
}

impl Image {
    /// The first of the arguments is the program.
    pub(super) fn new(arguments: &[&[u8]], environment: &BTreeMap<String, String>) -> io::Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|err| io::Error::other(err.to_string()));
        let variable = |(name, value): (&String, &String)| text(format!("{name}={value}").as_bytes());
        let arguments: Vec<CString> = arguments.iter().map(|one| text(one)).collect::<Result<_, _>>()?;
        let environment: Vec<CString> = environment.iter().map(variable).collect::<Result<_, _>>()?;
        let listed = |texts: &[CString]| -> Vec<_> {
            let pointers = texts.iter().map(|text| text.as_ptr());
            pointers.chain([ptr::null()]).collect()
        };
        Ok(Self {
            arguments: listed(&arguments),
            environment: listed(&environment),
            _texts: [arguments, environment],
        })
    }

    /// Becomes it. Returns only with why it could not.
    pub(super) fn exec(&self) -> Errno {
        #[expect(unsafe_code, reason = "no safe wrapper executes without a search or a shell")]
        // SAFETY: all are texts that end with a zero, and lists that end with a null, and live as long as this.
        unsafe {
            libc::execve(
                self.arguments[0],
                self.arguments.as_ptr(),
                self.environment.as_ptr(),
            );
        }
        Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::NOEXEC)
    }
}
