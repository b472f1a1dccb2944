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

// validateBytes is VALIDATE with protocolMagic, the first query of each connection.
const validateBytes = "00 cef7853c"

// Query numbers.
const (
	setQuery        = "01"
	compareSetQuery = "02"
	getQuery        = "03"
	addQuery        = "04"
	checkQuery      = "05"
	waitQuery       = "06"
	numKeysQuery    = "07"
	deleteQuery     = "08"
	appendQuery     = "09"
	multiGetQuery   = "0a"
	multiSetQuery   = "0b"
	cancelWaitQuery = "0c"
	pingQuery       = "0d"
	queuePushQuery  = "0e"
	queuePopQuery   = "0f"
	queueLenQuery   = "10"
	listKeysQuery   = "11"
	barrierQuery    = "12"
	unknownQuery    = "13"
)

// One-byte answers, such as replyReady.
const (
	ready    = "00"
	notReady = "01"
	waitOver = "00"
	canceled = "01"
)

// pingNonce follows pingQuery. The answer repeats it.
const pingNonce = "01020304" // arbitrary

// Little-endian numbers of 64 bits.
const (
	minusTwo64 = "feffffffffffffff"
	zero64     = "0000000000000000"
	one64      = "0100000000000000"
	two64      = "0200000000000000"
	three64    = "0300000000000000"
)

// Encoded keys: length and text. A Client adds the slashes to the keys k, n and x.
const (
	keyA = one64 + "'a'"
	keyB = one64 + "'b'"
	keyC = one64 + "'c'"
	keyK = two64 + "'/k'"
	keyN = two64 + "'/n'"
	keyQ = one64 + "'q'"  // of a queue
	keyX = two64 + "'/x'" // never set in exchanges
)

// Encoded values: length and text.
const (
	value1  = one64 + "'1'"
	value2  = one64 + "'2'"
	valueD  = one64 + "'d'"
	valueE  = one64 + "'e'"
	valueV  = one64 + "'v'"
	valueW  = one64 + "'w'"
	valueX  = one64 + "'x'"
	valueWX = two64 + "'wx'"
)

// exchanges contains every query except VALIDATE. They are sent to one server, in this order.
var exchanges = []struct {
	name string
	send string // the query
	want string // the server's answer, or "" if it sends none
}{
	{name: "PING", send: pingQuery + "78563412", want: "78563412"},
	{name: "SET", send: setQuery + keyK + valueV},
	{name: "GET", send: getQuery + keyK, want: valueV},
	{name: "GET of a missing key", send: getQuery + keyX, want: zero64},
	{name: "COMPARE_SET that matches", send: compareSetQuery + keyK + valueV + valueW, want: valueW},
	{
		name: "COMPARE_SET that does not match",
		send: compareSetQuery + keyK + valueV + zero64, want: valueW,
	},
	{
		name: "COMPARE_SET of a missing key",
		send: compareSetQuery + keyX + valueE + valueD, want: valueE,
	},
	{name: "ADD to a missing key", send: addQuery + keyN + minusTwo64, want: minusTwo64},
	{name: "ADD again", send: addQuery + keyN + three64, want: one64},
	{name: "GET of a number", send: getQuery + keyN, want: value1},
	{name: "CHECK of existing keys", send: checkQuery + two64 + keyK + keyN, want: ready},
	{name: "CHECK of a missing key", send: checkQuery + two64 + keyK + keyX, want: notReady},
	{name: "CHECK of no keys", send: checkQuery + zero64, want: ready},
	{name: "WAIT for an existing key", send: waitQuery + one64 + keyK, want: waitOver},
	{name: "WAIT for a missing key", send: waitQuery + one64 + keyX},
	{name: "CANCEL_WAIT", send: cancelWaitQuery, want: canceled},
	{name: "CANCEL_WAIT without a wait", send: cancelWaitQuery, want: canceled},
	{name: "GETNUMKEYS", send: numKeysQuery, want: two64},
	{name: "DELETE_KEY", send: deleteQuery + keyN, want: one64},
	{name: "DELETE_KEY again", send: deleteQuery + keyN, want: zero64},
	{name: "APPEND", send: appendQuery + keyK + valueX},
	{name: "MULTI_GET", send: multiGetQuery + two64 + keyK + keyX, want: valueWX + zero64},
	{name: "MULTI_GET of no keys", send: multiGetQuery + zero64},
	{name: "MULTI_SET", send: multiSetQuery + two64 + keyA + value1 + keyB + zero64},
	{name: "QUEUE_PUSH", send: queuePushQuery + keyQ + value1},
	{name: "QUEUE_PUSH again", send: queuePushQuery + keyQ + value2},
	{name: "QUEUE_LEN", send: queueLenQuery + keyQ, want: two64},
	{name: "CHECK of a non-empty queue", send: checkQuery + one64 + keyQ, want: ready},
	// QUEUE_POP answers with the former length of the queue, and the first value.
	{name: "QUEUE_POP", send: queuePopQuery + keyQ, want: two64 + value1},
	{name: "QUEUE_POP of the last value", send: queuePopQuery + keyQ, want: one64 + value2},
	{name: "QUEUE_POP of an empty queue", send: queuePopQuery + keyQ, want: zero64},
	{name: "LIST_KEYS", send: listKeysQuery, want: three64 + keyK + keyA + keyB},
	{name: "BARRIER for one rank", send: barrierQuery + keyB + one64, want: waitOver},
	{name: "BARRIER for two ranks", send: barrierQuery + keyC + two64},
	{name: "CANCEL_WAIT at a barrier", send: cancelWaitQuery, want: canceled},
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

// A PING after each query detects extra bytes in the answer.
func TestServerAnswerBytes(t *testing.T) {
	conn := openTestConn(t)
	send(t, conn, validateBytes)
	tested := map[byte]bool{0: true} // by query number; 0 is VALIDATE, sent above
	for _, exchange := range exchanges {
		t.Log(exchange.name)
		queryNumber := parseBytes(t, exchange.send)[0]
		tested[queryNumber] = true
		send(t, conn, exchange.send+pingQuery+pingNonce)
		expect(t, conn, exchange.want+pingNonce)
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

// checkServerCloses checks that a new server closes the connection without an answer to b.
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
		"another first query":   pingQuery + pingNonce,
		"the wrong magic":       "00 cef7853d",
		"HTTP":                  "'GET / HTTP/1.1'",
		"an unknown query":      validateBytes + unknownQuery,
		"VALIDATE twice":        validateBytes + validateBytes,
		"a key over 8 KiB":      validateBytes + getQuery + "0120000000000000",
		"a value over 8 MiB":    validateBytes + setQuery + keyA + "0100800000000000",
		"a huge key":            validateBytes + getQuery + "ffffffffffffffff",
		"more than 128 Ki keys": validateBytes + checkQuery + "0100020000000000",
		"ADD to a value that is not a number": validateBytes +
			setQuery + keyA + valueV + addQuery + keyA + one64,
		"a second WAIT": validateBytes +
			waitQuery + one64 + keyB + waitQuery + one64 + keyC,
		"BARRIER during WAIT": validateBytes +
			waitQuery + one64 + keyB + barrierQuery + keyC + one64,
	} {
		t.Run(name, func(t *testing.T) { checkServerCloses(t, parseBytes(t, text)) })
	}

	t.Run("an APPEND beyond the limit", func(t *testing.T) {
		const maxValueBytes64 = "0000800000000000"
		b := parseBytes(t, validateBytes+setQuery+keyA+maxValueBytes64)
		b = append(b, make([]byte, maxValueBytes)...)
		b = append(b, parseBytes(t, appendQuery+keyA+valueX)...)
		checkServerCloses(t, b)
	})
}
