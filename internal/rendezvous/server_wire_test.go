package rendezvous

import (
	"bytes"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
)

// parseBytes parses hexadecimal digits with spaces, and characters in single quotes. For example,
// the query GET for the key "/k", and the answer if its value is "v", are
//
//	03 0200000000000000 '/k'
//	0100000000000000 'v'
//
// The query number is 03. Keys and values follow their lengths, 2 and 1.
func parseBytes(t testing.TB, text string) []byte {
	t.Helper()
	var b []byte
	for i, part := range strings.Split(text, "'") {
		isInQuotes := i%2 == 1
		if isInQuotes {
			b = append(b, part...)
			continue
		}

		digits := strings.ReplaceAll(part, " ", "")
		decoded, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}

		b = append(b, decoded...)
	}

	return b
}

// validateBytes is VALIDATE with its magic number, the first query of each connection.
const validateBytes = "00 cef7853c"

// Little-endian numbers of 64 bits.
const (
	zero64  = "0000000000000000"
	one64   = "0100000000000000"
	two64   = "0200000000000000"
	three64 = "0300000000000000"
)

// Keys after their lengths. keyX is never set in exchanges.
const (
	keyA = one64 + "'a'"
	keyB = one64 + "'b'"
	keyC = one64 + "'c'"
	keyK = two64 + "'/k'"
	keyN = two64 + "'/n'"
	keyQ = one64 + "'q'" // of a queue
	keyX = two64 + "'/x'"
)

// Values after their lengths.
const (
	value1 = one64 + "'1'"
	value2 = one64 + "'2'"
	valueD = one64 + "'d'"
	valueE = one64 + "'e'"
	valueV = one64 + "'v'"
	valueW = one64 + "'w'"
	valueX = one64 + "'x'"
)

// exchanges has examples of every query except VALIDATE. Later answers depend on earlier queries.
var exchanges = []struct {
	name string
	send string // the query
	want string // the server's answer, or "" if it sends none
}{
	{name: "PING", send: "0d 78563412", want: "78563412"},
	{name: "SET", send: "01" + keyK + valueV},
	{name: "GET", send: "03" + keyK, want: valueV},
	{name: "GET of a missing key", send: "03" + keyX, want: zero64},
	{name: "COMPARE_SET that matches", send: "02" + keyK + valueV + valueW, want: valueW},
	{name: "COMPARE_SET that does not match", send: "02" + keyK + valueV + zero64, want: valueW},
	{name: "COMPARE_SET of a missing key", send: "02" + keyX + valueE + valueD, want: valueE},
	{name: "ADD", send: "04" + keyN + "feffffffffffffff", want: "feffffffffffffff"}, // 0 + -2
	{name: "ADD again", send: "04" + keyN + three64, want: one64},
	{name: "GET of a number", send: "03" + keyN, want: value1},
	{name: "CHECK of existing keys", send: "05" + two64 + keyK + keyN, want: "00"},
	{name: "CHECK of a missing key", send: "05" + two64 + keyK + keyX, want: "01"},
	{name: "CHECK of no keys", send: "05" + zero64, want: "00"},
	{name: "WAIT for an existing key", send: "06" + one64 + keyK, want: "00"},
	{name: "WAIT for a missing key", send: "06" + one64 + keyX},
	{name: "CANCEL_WAIT", send: "0c", want: "01"},
	{name: "CANCEL_WAIT without a wait", send: "0c", want: "01"},
	{name: "GETNUMKEYS", send: "07", want: two64},
	{name: "DELETE_KEY", send: "08" + keyN, want: one64},
	{name: "DELETE_KEY again", send: "08" + keyN, want: zero64},
	{name: "APPEND", send: "09" + keyK + valueX},
	{name: "MULTI_GET", send: "0a" + two64 + keyK + keyX, want: two64 + "'wx'" + zero64},
	{name: "MULTI_GET of no keys", send: "0a" + zero64},
	{name: "MULTI_SET", send: "0b" + two64 + keyA + value1 + keyB + zero64},
	{name: "QUEUE_PUSH", send: "0e" + keyQ + value1},
	{name: "QUEUE_PUSH again", send: "0e" + keyQ + value2},
	{name: "QUEUE_LEN", send: "10" + keyQ, want: two64},
	{name: "CHECK of a non-empty queue", send: "05" + one64 + keyQ, want: "00"},
	// QUEUE_POP answers with the former length of the queue, and the first value.
	{name: "QUEUE_POP", send: "0f" + keyQ, want: two64 + value1},
	{name: "QUEUE_POP of the last value", send: "0f" + keyQ, want: one64 + value2},
	{name: "QUEUE_POP of an empty queue", send: "0f" + keyQ, want: zero64},
	{name: "LIST_KEYS", send: "11", want: three64 + keyK + keyA + keyB},
	{name: "BARRIER for one rank", send: "12" + keyB + one64, want: "00"},
	{name: "BARRIER for two ranks", send: "12" + keyC + two64},
	{name: "CANCEL_WAIT at a barrier", send: "0c", want: "01"},
}

// openRawConn connects to a server as a remote client, but without a handshake.
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

// openTestConn returns a connection to a new server that requires no token.
func openTestConn(t *testing.T) net.Conn {
	t.Helper()
	s := newServer("test", "")
	closeLater(t, s)
	return openRawConn(t, s)
}

func send(t *testing.T, conn io.Writer, text string) {
	t.Helper()
	if _, err := conn.Write(parseBytes(t, text)); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, conn io.Reader, text string) {
	t.Helper()
	want := parseBytes(t, text)
	got := make([]byte, len(want))
	n, err := io.ReadFull(conn, got)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got  % x (%v)\nwant % x", got[:n], err, want)
	}
}

// A PING after each query detects an answer that is too long.
func TestServerAnswerBytes(t *testing.T) {
	const pingAnswer = "01020304"
	const ping = "0d" + pingAnswer
	conn := openTestConn(t)
	send(t, conn, validateBytes)
	tested := map[byte]bool{0: true} // by query number; 0 is VALIDATE
	for _, exchange := range exchanges {
		t.Log(exchange.name)
		queryNumber := parseBytes(t, exchange.send)[0]
		tested[queryNumber] = true
		send(t, conn, exchange.send+ping)
		expect(t, conn, exchange.want+pingAnswer)
	}

	if len(tested) != int(queryCount) {
		t.Fatalf("exchanges contains %d queries; want all %d", len(tested), queryCount)
	}
}

// The server waits for the rest of a query that arrives in parts.
func TestServerReadsSingleBytes(t *testing.T) {
	conn := openTestConn(t)
	queries := validateBytes
	answers := ""
	for _, exchange := range exchanges {
		queries += exchange.send
		answers += exchange.want
	}

	queryBytes := parseBytes(t, queries)
	go func() { // ends when all bytes are written or the test closes conn
		for _, b := range queryBytes {
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
		}
	}()
	expect(t, conn, answers)
}

// checkServerCloses checks that a new server reads b and closes the connection without an answer.
func checkServerCloses(t *testing.T, b []byte) {
	t.Helper()
	conn := openTestConn(t)
	go func() { _, _ = conn.Write(b) }() // The write can fail, because the server closes.
	rest, err := io.ReadAll(conn)
	if err != nil || len(rest) != 0 {
		t.Fatalf("read % x, %v; want a closed connection", rest, err)
	}
}

func TestServerClosesInvalidConnections(t *testing.T) {
	for name, text := range map[string]string{
		"another first query":   "0d 01020304",
		"the wrong magic":       "00 cef7853d",
		"HTTP":                  "'GET / HTTP/1.1'",
		"an unknown query":      validateBytes + "13",
		"VALIDATE twice":        validateBytes + validateBytes,
		"a key over 8 KiB":      validateBytes + "03 0120000000000000",
		"a value over 8 MiB":    validateBytes + "01" + keyA + "0100800000000000",
		"a huge key":            validateBytes + "03 ffffffffffffffff",
		"more than 128 Ki keys": validateBytes + "05 0100020000000000",
		"ADD to a value that is not a number": validateBytes +
			"01" + keyA + valueV + "04" + keyA + one64,
		"a second WAIT": validateBytes +
			"06" + one64 + keyB + "06" + one64 + keyC,
		"BARRIER during WAIT": validateBytes +
			"06" + one64 + keyB + "12" + keyC + one64,
	} {
		t.Run(name, func(t *testing.T) { checkServerCloses(t, parseBytes(t, text)) })
	}

	t.Run("an APPEND beyond the limit", func(t *testing.T) {
		const maxValueBytes64 = "0000800000000000"
		b := parseBytes(t, validateBytes+"01"+keyA+maxValueBytes64) // SET
		b = append(b, make([]byte, maxValueBytes)...)
		b = append(b, parseBytes(t, "09"+keyA+valueX)...) // APPEND of one byte
		checkServerCloses(t, b)
	})
}
