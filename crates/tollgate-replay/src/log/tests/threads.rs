//! The threads that read.

use super::*;

/// A line, and then a panic of the thread that reads.
struct Panicking(Cursor<String>, ThreadId);

impl Read for Panicking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        assert!(read > 0 || thread::current().id() == self.1, "a bug in a reader");
        Ok(read)
    }
}

#[test]
fn panic_while_reading_is_not_the_end_of_a_file() {
    let read = catch_unwind(|| {
        let bytes = Panicking(Cursor::new(format!("{LINE}\n")), thread::current().id());
        let input = Input::from_reader("test.log", bytes).unwrap();
        let mut records = Records::new(vec![input], &Options::default());
        while let Ok(Some(_)) = records.next() {}
    });
    assert!(read.is_err());
}

/// Lines without an end.
struct Endless(#[expect(dead_code, reason = "shows whether the reader exists")] Arc<()>);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(b'\n');
        Ok(buffer.len())
    }
}

#[test]
fn closed_records_have_no_thread() {
    let is_read = Arc::new(());
    let input = Input::from_reader("test.log", Endless(Arc::clone(&is_read))).unwrap();
    let records = Records::new(vec![input], &Options::default());
    assert_eq!(Arc::strong_count(&is_read), 2);
    records.close();
    assert_eq!(Arc::strong_count(&is_read), 1);
}
