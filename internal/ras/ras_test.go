package ras_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"symmem/internal/ras"
)

func formatRanks(ranks []int) string {
	numbers := strings.Trim(fmt.Sprint(ranks), "[]")
	return "rank " + numbers
}

// startServer starts a server that sends report to one client. It ends with the test at the latest.
func startServer(t *testing.T, report string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return // the test has ended
		}
		defer conn.Close()
		respond(conn, report)
	}()
	return l.Addr().String()
}

// respond answers a client's request lines until it has sent the report.
func respond(conn net.Conn, report string) {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		request := lines.Text()
		switch {
		case strings.HasPrefix(request, "CLIENT PROTOCOL "):
			fmt.Fprintln(conn, "SERVER PROTOCOL 2")
		case strings.HasSuffix(request, "STATUS"):
			fmt.Fprint(conn, report)
			return
		default:
			fmt.Fprintln(conn, "OK")
		}
	}
}

// The report was recorded from NCCL 2.31.2. Rank 0 had called AllReduce 3 times, rank 1 twice.
func TestRecordedResponseIsParsed(t *testing.T) {
	recorded := readFile(t, "testdata/2.31.2.json")
	status, err := ras.QueryStatus(t.Context(), startServer(t, string(recorded)))
	if err != nil {
		t.Fatal(err)
	}

	recordedID := ras.ID(readFile(t, "testdata/2.31.2.id"))
	for name, c := range map[string]struct {
		id   string
		size int
		want string
	}{
		"the recorded communicator": {
			id: recordedID, size: 2, want: "AllReduce: 2 by rank 1, 3 by rank 0",
		},
		"another communicator": {id: ras.ID([]byte("another")), size: 2, want: ""},
		"another size":         {id: recordedID, size: 3, want: ""},
	} {
		if got := status.DescribeDifferences(c.id, c.size, formatRanks); got != c.want {
			t.Errorf("DescribeDifferences of %s = %q, want %q", name, got, c.want)
		}
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return data
}

// QueryStatus refuses malformed reports. DescribeDifferences ignores invalid ranks and unknown
// names.
func TestInvalidResponsesAreRefused(t *testing.T) {
	for _, malformed := range []string{
		"", "HTTP/1.1 400 Bad Request\n", `{"communicators": 7}`, `{"communicators"`,
	} {
		if _, err := ras.QueryStatus(t.Context(), startServer(t, malformed)); err == nil {
			t.Errorf("QueryStatus with report %q = nil error, want an error", malformed)
		}
	}

	// Ranks -1 and 99 are out of range, and a name has an escape sequence. Rank 1 has no counts, which
	// means 0 calls.
	hostileReport := `{"communicators":[{"hash":"0x1","size":2,"ranks":[{"rank":-1},{"rank":99},` +
		`{"rank":0,"collective_counts":{"AllReduce":1,"\u001b[2J":7}},` +
		`{"rank":1,"collective_counts":null}]}]}`
	status, err := ras.QueryStatus(t.Context(), startServer(t, hostileReport))
	if err != nil {
		t.Fatal(err)
	}

	want := "AllReduce: 0 by rank 1, 1 by rank 0"
	if got := status.DescribeDifferences("0x1", 2, formatRanks); got != want {
		t.Errorf("DescribeDifferences = %q, want %q", got, want)
	}
}

// The kernel accepts the connection, but no server answers.
func TestQueryReturnsAtDeadline(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const timeout = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	begin := time.Now()
	if _, err := ras.QueryStatus(ctx, l.Addr().String()); err == nil {
		t.Error("QueryStatus of a silent server = nil error, want an error")
	}

	const limit = 5 * time.Second // generous for a busy machine
	if waited := time.Since(begin); waited > limit {
		t.Errorf("QueryStatus returned after %v, want about %v", waited, timeout)
	}
}

func TestAddress(t *testing.T) {
	noVariables := func(string) string { return "" }
	if got := ras.Address(noVariables); got != "localhost:28028" {
		t.Errorf("Address without the variable = %q, want localhost:28028", got)
	}

	withVariable := func(string) string { return "h:1" }
	if got := ras.Address(withVariable); got != "h:1" {
		t.Errorf("Address with the variable h:1 = %q, want h:1", got)
	}
}
