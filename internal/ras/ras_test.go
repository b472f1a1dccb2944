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

// NCCL's RAS subsystem is a server that reports the state of a job. For example, it reports that
// in a communicator, which is a group of ranks, rank 0 has called AllReduce 3 times, and rank 1
// twice.
//
// QueryStatus asks the server for its report. DescribeDifferences describes the differences in a
// communicator: "AllReduce: 2 by rank 1, 3 by rank 0". In these tests, a goroutine is the server.

// formatRanks formats ranks for DescribeDifferences.
func formatRanks(ranks []int) string {
	numbers := strings.Trim(fmt.Sprint(ranks), "[]")
	return "rank " + numbers
}

// startServer starts a server for one client. report is its response to STATUS, the last request.
// The server ends with the test or after the report.
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

// respond answers a client's requests, each of which is a line, until it has sent the report.
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

// TestRecordedResponseIsParsed parses a report that was recorded from NCCL 2.31.2 on a GPU. In it,
// rank 0 has called AllReduce 3 times, and rank 1 twice. The description must be empty for a
// communicator that is not in the report.
func TestRecordedResponseIsParsed(t *testing.T) {
	recorded := readFile(t, "testdata/2.31.2.json")
	status, err := ras.QueryStatus(t.Context(), startServer(t, string(recorded)))
	if err != nil {
		t.Fatal(err)
	}

	recordedID := ras.ID(readFile(t, "testdata/2.31.2.id"))
	for name, c := range map[string]struct {
		id   string
		size int // number of ranks
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

// readFile returns the contents of a file.
func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return data
}

// TestInvalidResponsesAreRefused receives reports that NCCL would not send. QueryStatus must refuse
// malformed ones. In a report of the right form, invalid ranks and names must be ignored.
func TestInvalidResponsesAreRefused(t *testing.T) {
	for _, malformed := range []string{
		"", "HTTP/1.1 400 Bad Request\n", `{"communicators": 7}`, `{"communicators"`,
	} {
		if _, err := ras.QueryStatus(t.Context(), startServer(t, malformed)); err == nil {
			t.Errorf("QueryStatus with report %q = nil error, want an error", malformed)
		}
	}

	// The ranks -1 and 99 are invalid, and so is the name with an escape sequence. Rank 1 has no
	// counts, which means 0 calls.
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

// TestQueryReturnsAtDeadline queries a server that never accepts the connection. The kernel
// connects the client, which then waits for a response.
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

	const limit = 5 * time.Second // much longer than timeout, because the machine may be busy
	if waited := time.Since(begin); waited > limit {
		t.Errorf("QueryStatus returned after %v, want about %v", waited, timeout)
	}
}

// TestAddress checks that the environment can replace the default address.
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
