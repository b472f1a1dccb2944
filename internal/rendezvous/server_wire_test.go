package rendezvous

import (
	"bytes"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
)

// parseBytes returns the bytes that text describes: pairs of hexadecimal digits, and in single
// quotes the characters themselves. It ignores spaces between digits.
func parseBytes(t testing.TB, text string) []byte {
	t.Helper()
	var b []byte
	for i, part := range strings.Split(text, "'") {
		if i%2 == 1 {
			b = append(b, part...)
			continue
		}

		piece, err := hex.DecodeString(strings.ReplaceAll(part, " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}

		b = append(b, piece...)
	}

	return b
}

// validateBytes is the query VALIDATE with its magic number, which must be first on a connection.
const validateBytes = "00 cef7853c"

// Numbers of 64 bits, in little-endian order. Before a key, a value or a list, they are its length.
// They are also counts of ranks, and operands of ADD.
const (
	zero64  = "0000000000000000"
	one64   = "0100000000000000"
	two64   = "0200000000000000"
	three64 = "0300000000000000"
)

// exchanges has the bytes of every query except VALIDATE, in the form that parseBytes reads, and of
// the server's answer. The first byte of a query is its number. After it come keys and values, each
// with its length. An empty answer means that the server sends none. Earlier queries affect later
// answers.
var exchanges = []struct{ name, send, want string }{
	{"PING", "0d 78563412", "78563412"},
	{"SET", "01" + two64 + "'/k'" + one64 + "'v'", ""},
	{"GET", "03" + two64 + "'/k'", one64 + "'v'"},
	{"GET of a missing key", "03" + two64 + "'/x'", zero64},
	{"COMPARE_SET that matches", "02" + two64 + "'/k'" + one64 + "'v'" + one64 + "'w'", one64 + "'w'"},
	{"COMPARE_SET that does not match", "02" + two64 + "'/k'" + one64 + "'v'" + zero64, one64 + "'w'"},
	{
		"COMPARE_SET of a missing key",
		"02" + two64 + "'/x'" + one64 + "'e'" + one64 + "'d'", one64 + "'e'",
	},
	{"ADD", "04" + two64 + "'/n' feffffffffffffff", "feffffffffffffff"},
	{"ADD again", "04" + two64 + "'/n'" + three64, one64},
	{"GET of a number", "03" + two64 + "'/n'", one64 + "'1'"},
	{"CHECK of existing keys", "05" + two64 + two64 + "'/k'" + two64 + "'/n'", "00"},
	{"CHECK of a missing key", "05" + two64 + two64 + "'/k'" + two64 + "'/x'", "01"},
	{"CHECK of no keys", "05" + zero64, "00"},
	{"WAIT for an existing key", "06" + one64 + two64 + "'/k'", "00"},
	{"WAIT for a missing key", "06" + one64 + two64 + "'/x'", ""},
	{"CANCEL_WAIT", "0c", "01"},
	{"CANCEL_WAIT without a wait", "0c", "01"},
	{"GETNUMKEYS", "07", two64},
	{"DELETE_KEY", "08" + two64 + "'/n'", one64},
	{"DELETE_KEY again", "08" + two64 + "'/n'", zero64},
	{"APPEND", "09" + two64 + "'/k'" + one64 + "'x'", ""},
	{"MULTI_GET", "0a" + two64 + two64 + "'/k'" + two64 + "'/x'", two64 + "'wx'" + zero64},
	{"MULTI_GET of no keys", "0a" + zero64, ""},
	{"MULTI_SET", "0b" + two64 + one64 + "'a'" + one64 + "'1'" + one64 + "'b'" + zero64, ""},
	{"QUEUE_PUSH", "0e" + one64 + "'q'" + one64 + "'1'", ""},
	{"QUEUE_PUSH again", "0e" + one64 + "'q'" + one64 + "'2'", ""},
	{"QUEUE_LEN", "10" + one64 + "'q'", two64},
	{"CHECK of a non-empty queue", "05" + one64 + one64 + "'q'", "00"},
	{"QUEUE_POP", "0f" + one64 + "'q'", two64 + one64 + "'1'"},
	{"QUEUE_POP of the last value", "0f" + one64 + "'q'", one64 + one64 + "'2'"},
	{"QUEUE_POP of an empty queue", "0f" + one64 + "'q'", zero64},
	{"LIST_KEYS", "11", three64 + two64 + "'/k'" + one64 + "'a'" + one64 + "'b'"},
	{"BARRIER for one rank", "12" + one64 + "'b'" + one64, "00"},
	{"BARRIER for two ranks", "12" + one64 + "'c'" + two64, ""},
	{"CANCEL_WAIT at a barrier", "0c", "01"},
}

// openRawConn connects to s as a remote client, without a handshake.
func openRawConn(t *testing.T, s *Server) net.Conn {
	t.Helper()
	clientEnd, serverEnd := net.Pipe()
	const isRemote = true
	if !s.startSession(serverEnd, isRemote) {
		t.Fatal("the server is closed")
	}

	closeLater(t, clientEnd)
	return clientEnd
}

// send writes the bytes that text describes to conn.
func send(t *testing.T, conn io.Writer, text string) {
	t.Helper()
	if _, err := conn.Write(parseBytes(t, text)); err != nil {
		t.Fatal(err)
	}
}

// expect reads as many bytes from conn as text describes, and compares them.
func expect(t *testing.T, conn io.Reader, text string) {
	t.Helper()
	want := parseBytes(t, text)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got  % x (%v)\nwant % x", got[:n], err, want)
	}
}

// TestServerAnswerBytes sends a PING after each query, so that it detects extra bytes in an
// answer.
func TestServerAnswerBytes(t *testing.T) {
	s := newServer("test", "")
	closeLater(t, s)
	conn := openRawConn(t, s)
	send(t, conn, validateBytes)
	tested := map[byte]bool{0: true} // by query number; 0 is VALIDATE
	const pingAnswer = "01020304"    // the nonce of the PING
	const ping = "0d" + pingAnswer
	for _, x := range exchanges {
		t.Log(x.name)
		tested[parseBytes(t, x.send)[0]] = true
		send(t, conn, x.send+ping)
		expect(t, conn, x.want+pingAnswer)
	}

	if len(tested) != int(queryCount) {
		t.Fatalf("exchanges contains %d queries; want all %d", len(tested), queryCount)
	}
}

// TestServerReadsSingleBytes sends all queries in writes of one byte. The server must wait for the
// rest of each query.
func TestServerReadsSingleBytes(t *testing.T) {
	s := newServer("test", "")
	closeLater(t, s)
	conn := openRawConn(t, s)
	queries, want := validateBytes, ""
	for _, x := range exchanges {
		queries += x.send
		want += x.want
	}

	queryBytes := parseBytes(t, queries)
	go func() { // ends when all bytes are written or the test closes conn
		for _, b := range queryBytes {
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
		}
	}()
	expect(t, conn, want)
}

// TestServerClosesInvalidConnections sends bytes that violate the protocol or exceed its limits.
// The server must close the connection without an answer.
func TestServerClosesInvalidConnections(t *testing.T) {
	const appendRow = "an APPEND beyond the limit"
	rows := map[string]string{ // the bytes that the client sends
		"another first query":   "0d 01020304",
		"the wrong magic":       "00 cef7853d",
		"HTTP":                  "'GET / HTTP/1.1'",
		"an unknown query":      validateBytes + "13",
		"VALIDATE twice":        validateBytes + validateBytes,
		"a key over 8 KiB":      validateBytes + "03 0120000000000000",
		"a value over 8 MiB":    validateBytes + "01" + one64 + "'k' 0100800000000000",
		"a huge key":            validateBytes + "03 ffffffffffffffff",
		"more than 128 Ki keys": validateBytes + "05 0100020000000000",
		"ADD to a value that is not a number": validateBytes +
			"01" + one64 + "'k'" + one64 + "'v' 04" + one64 + "'k'" + one64,
		"a second WAIT": validateBytes + "06" + one64 + one64 + "'x' 06" + one64 + one64 + "'y'",
		"BARRIER during WAIT": validateBytes +
			"06" + one64 + one64 + "'x' 12" + one64 + "'y'" + one64,
		// Below, the value of maxValueBytes and the APPEND are added.
		appendRow: validateBytes + "01" + one64 + "'k' 0000800000000000",
	}
	for name, text := range rows {
		t.Run(name, func(t *testing.T) {
			s := newServer("test", "")
			closeLater(t, s)
			conn := openRawConn(t, s)
			b := parseBytes(t, text)
			if name == appendRow {
				b = append(b, make([]byte, maxValueBytes)...)
				b = append(b, parseBytes(t, "09"+one64+"'k'"+one64+"'x'")...)
			}

			go func() { _, _ = conn.Write(b) }()
			if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
				t.Fatalf("read % x, %v; want a closed connection", rest, err)
			}
		})
	}
}
