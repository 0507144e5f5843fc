use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub text: String,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[doc(alias = "TG0001")]
    #[error("{name}: {error}{} [TG0001]", cure(error))]
    Io { name: String, error: io::Error },
    #[doc(alias = "TG0001")]
    #[error(
        "{name}: it is a pipe, and a file is read again when it changes: name a file, or give the \
         configuration on stdin, as `-` [TG0001]"
    )]
    Pipe { name: String },
    #[doc(alias = "TG0002")]
    #[error(
        "{name}: the file is larger than {} KiB: is it the right file? Split the service into \
         several gateways if it is [TG0002]",
        Source::MAX_BYTES >> 10
    )]
    TooLarge { name: String },
    #[doc(alias = "TG0003")]
    #[error("{name}: byte {at} is not UTF-8: save the file as UTF-8 [TG0003]")]
    NotUtf8 {
        name: String,
        /// The offset of the invalid byte.
        at: usize,
    },
}

/// Whether the file is a pipe. A pipe cannot be read twice, and opening a pipe without a writer
/// blocks forever.
pub(crate) fn is_pipe(path: &Path) -> bool {
    #[cfg(unix)]
    let is_pipe = {
        use std::os::unix::fs::FileTypeExt as _;
        std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
    };
    #[cfg(not(unix))]
    let is_pipe = false;
    is_pipe
}

impl Source {
    /// The maximum size of a configuration, enough for thousands of policies.
    pub const MAX_BYTES: u64 = 1 << 20;

    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// Reads a file, or stdin if the path is `-`.
    pub fn read(path: &Path) -> Result<Self, SourceError> {
        if path == Path::new("-") {
            return Self::from_reader("stdin", io::stdin().lock());
        }
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::from_reader(&name, file),
            Err(error) => Err(SourceError::Io { name, error }),
        }
    }

    /// The same for a file that is read repeatedly.
    pub fn read_again(path: &Path) -> Result<Self, SourceError> {
        if path != Path::new("-") && is_pipe(path) {
            return Err(SourceError::Pipe { name: path.display().to_string() });
        }
        Self::read(path)
    }

    fn from_reader(name: &str, reader: impl Read) -> Result<Self, SourceError> {
        let name = name.to_owned();
        let mut bytes = Vec::new();
        // Reads one more byte than allowed, to detect a larger file without reading all of it.
        if let Err(error) = reader.take(Self::MAX_BYTES + 1).read_to_end(&mut bytes) {
            return Err(SourceError::Io { name, error });
        }
        if bytes.len() as u64 > Self::MAX_BYTES {
            return Err(SourceError::TooLarge { name });
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) => Err(SourceError::NotUtf8 { name, at: error.utf8_error().valid_up_to() }),
        }
    }
}

fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; write one with `tollgate init`, or pass its path",
        io::ErrorKind::PermissionDenied => "; let the program's user (10001 in the image) read it",
        io::ErrorKind::IsADirectory => {
            "; name a file (Docker creates a folder if the file to mount does not exist)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_files_name_a_cure() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Source::read(&folder.path().join("limits.yaml")).unwrap_err().to_string();
        assert!(missing.ends_with("; write one with `tollgate init`, or pass its path [TG0001]"));
        #[cfg(unix)]
        {
            let mounted = Source::read(folder.path()).unwrap_err().to_string();
            assert!(mounted.contains("; name a file ("), "{mounted}");
        }
        // Not with a real file, because tests may run as root, which can read everything.
        let error = io::ErrorKind::PermissionDenied.into();
        let forbidden = SourceError::Io { name: "limits.yaml".to_owned(), error }.to_string();
        assert_eq!(
            forbidden,
            "limits.yaml: permission denied; let the program's user (10001 in the image) read it \
             [TG0001]"
        );
    }

    #[test]
    fn large_files_are_not_read_completely() {
        let error = Source::from_reader("big", io::repeat(b'#')).unwrap_err();
        assert_eq!(
            error.to_string(),
            "big: the file is larger than 1024 KiB: is it the right file? Split the service into \
             several gateways if it is [TG0002]"
        );
    }

    #[test]
    fn invalid_utf8_is_located() {
        let error = Source::from_reader("bad", &b"a: \xff"[..]).unwrap_err();
        assert_eq!(error.to_string(), "bad: byte 3 is not UTF-8: save the file as UTF-8 [TG0003]");
    }
}
