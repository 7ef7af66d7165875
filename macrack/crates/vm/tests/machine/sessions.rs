//! Sessions with a guest, through its VM's process.

use macrack_wire::session::{
    Ended, Frame, MAX_CHUNK, MAX_SESSIONS, Reader, Session, TerminalSize, WINDOW, Writer, split,
};
use macrack_wire::{VmDir, WireError, journal};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

use crate::rack::{PATIENCE, Rack};

type Ends = (Reader<UnixStream>, Writer<UnixStream>);

fn shell(text: &str, stdin: bool, tty: bool) -> Session {
    Session::Exec { command: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(), stdin, tty }
}

async fn open(rack: &Rack, session: Session) -> Result<Ends, WireError> {
    Ok(split(rack.client("a").await.open(session).await?))
}

/// All output of a session, errors, and its end.
async fn whole(reader: &mut Reader<UnixStream>) -> (String, String, Option<Ended>) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    loop {
        match timeout(PATIENCE, reader.next()).await.unwrap().unwrap() {
            Some(Frame::Output(bytes)) => output.extend_from_slice(&bytes),
            Some(Frame::Errors(bytes)) => errors.extend_from_slice(&bytes),
            Some(Frame::Ended(ended)) => {
                let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                return (text(output), text(errors), Some(ended));
            }
            Some(_) => {}
            None => return (String::new(), String::new(), None),
        }
    }
}

async fn ready() -> (Rack, VmDir) {
    let rack = Rack::new();
    let dir = rack.make("a");
    rack.start("a");
    rack.ready("a").await;
    (rack, dir)
}

#[tokio::test]
async fn a_command_has_its_outputs_its_code_its_terminal_and_the_size_of_that() {
    let (rack, _dir) = ready().await;
    let (mut reader, _writer) = open(&rack, shell("echo out; echo err >&2; exit 7", false, false)).await.unwrap();
    let exit = |code| Some(Ended::Exit { code });
    assert_eq!(whole(&mut reader).await, ("out\n".to_owned(), "err\n".to_owned(), exit(7)));

    let (mut reader, mut writer) = open(&rack, shell("read line; stty size; tty", true, true)).await.unwrap();
    writer.send(&Frame::Resize(TerminalSize { columns: 123, rows: 45 })).await.unwrap();
    writer.send(&Frame::Input(Bytes::from_static(b"go\n"))).await.unwrap();
    let (output, _, ended) = whole(&mut reader).await;
    assert!(output.contains("45 123") && output.contains("/dev/pts/"), "{output}");
    assert_eq!(ended, exit(0));

    // Ctrl-C reaches the command, for the terminal is its own
    let (mut reader, mut writer) = open(&rack, shell("echo begun; exec sleep 600", true, true)).await.unwrap();
    let Some(Frame::Output(_)) = timeout(PATIENCE, reader.next()).await.unwrap().unwrap() else { panic!("no output") };
    writer.send(&Frame::Input(Bytes::from_static(b"\x03"))).await.unwrap();
    assert_eq!(whole(&mut reader).await.2, exit(130));
}

#[tokio::test]
async fn a_guest_that_is_sent_more_than_the_window_ends_the_session_and_nothing_else() {
    let (rack, _dir) = ready().await;
    let (mut reader, mut writer) = open(&rack, shell("exec sleep 600", true, false)).await.unwrap();
    let chunk = Bytes::from(vec![b'x'; MAX_CHUNK]);
    // the guest takes what fits into the pipe; the rest of the window, and then more, is nobody's
    for _ in 0..(3 * WINDOW as usize / MAX_CHUNK) {
        if writer.send(&Frame::Input(chunk.clone())).await.is_err() {
            break;
        }
    }
    let ended = async { while let Ok(Some(_)) = reader.next().await {} };
    timeout(PATIENCE, ended).await.expect("the session goes on");
    let (mut reader, _writer) = open(&rack, shell("echo still here", false, false)).await.unwrap();
    assert_eq!(whole(&mut reader).await.0, "still here\n");
}

#[tokio::test]
async fn sessions_are_counted_ports_are_reached_and_what_is_not_there_is_refused() {
    let (rack, _dir) = ready().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
    });
    let (mut reader, mut writer) = open(&rack, Session::Forward { port }).await.unwrap();
    writer.send(&Frame::Input(Bytes::from_static(b"there and back"))).await.unwrap();
    writer.send(&Frame::EndOfInput).await.unwrap();
    assert_eq!(whole(&mut reader).await, ("there and back".to_owned(), String::new(), Some(Ended::Over)));
    echo.await.unwrap();
    let refused = open(&rack, Session::Forward { port }).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("port {port} of the guest")), "{refused}");

    let mut open_ones = Vec::new();
    for _ in 0..MAX_SESSIONS {
        open_ones.push(open(&rack, shell("exec sleep 600", false, false)).await.unwrap());
    }
    let refused = open(&rack, shell("true", false, false)).await.unwrap_err().to_string();
    assert!(refused.contains("16 sessions are open"), "{refused}");
}

#[tokio::test]
async fn the_journal_tells_what_became_of_the_vm_and_what_its_first_boot_said() {
    let rack = Rack::new();
    let dir = rack.make_with_script("a", "echo one; echo two >&2; printf three");
    rack.start("a");
    rack.ready("a").await;
    rack.stop("a", 20).await;
    let text = String::from_utf8(journal::Wanted::default().select(&journal::read(&dir.journal()).unwrap())).unwrap();
    let boot: Vec<&str> = text.lines().filter(|line| line.starts_with("boot ")).collect();
    assert_eq!(boot, ["boot one", "boot two", "boot three"], "{text}");
    for line in ["vm   the VM starts\n", "vm   the VM has stopped as it was told to\n"] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}
