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

// formatRanks formats ranks for DescribeDifferences.
func formatRanks(ranks []int) string { return "rank " + strings.Trim(fmt.Sprint(ranks), "[]") }

// startServer serves one client as NCCL's RAS subsystem does, which reports the state of a job.
// answer is the response to the last request, STATUS. The server ends with the test or after the
// answer.
func startServer(t *testing.T, answer string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			line := lines.Text()
			switch {
			case strings.HasPrefix(line, "CLIENT PROTOCOL "):
				fmt.Fprintln(conn, "SERVER PROTOCOL 2")
			case strings.HasSuffix(line, "STATUS"):
				fmt.Fprint(conn, answer)
				return
			default:
				fmt.Fprintln(conn, "OK")
			}
		}
	}()
	return l.Addr().String()
}

// TestRecordedResponseIsParsed parses a response recorded from NCCL on a GPU (see
// testdata/README.md). In it, rank 0 has called AllReduce once more than rank 1. The description
// must be empty for a communicator that is not in the response.
func TestRecordedResponseIsParsed(t *testing.T) {
	recorded, err := os.ReadFile("testdata/2.31.2.json")
	if err != nil {
		t.Fatal(err)
	}

	status, err := ras.QueryStatus(t.Context(), startServer(t, string(recorded)))
	if err != nil {
		t.Fatal(err)
	}

	unique, err := os.ReadFile("testdata/2.31.2.id")
	if err != nil {
		t.Fatal(err)
	}

	id := ras.ID(unique)
	for name, c := range map[string]struct {
		id   string
		size int // number of ranks
		want string
	}{
		"the recorded communicator": {id: id, size: 2, want: "AllReduce: 2 by rank 1, 3 by rank 0"},
		"another communicator":      {id: ras.ID([]byte("another")), size: 2, want: ""},
		"another size":              {id: id, size: 3, want: ""},
	} {
		if got := status.DescribeDifferences(c.id, c.size, formatRanks); got != c.want {
			t.Errorf("DescribeDifferences of %s = %q, want %q", name, got, c.want)
		}
	}
}

// TestInvalidResponsesAreRefused queries servers that do not respond like NCCL. QueryStatus must
// reject malformed responses. In others, it must ignore invalid ranks and names.
func TestInvalidResponsesAreRefused(t *testing.T) {
	for _, answer := range []string{
		"", "HTTP/1.1 400 Bad Request\n", `{"communicators": 7}`, `{"communicators"`,
	} {
		if _, err := ras.QueryStatus(t.Context(), startServer(t, answer)); err == nil {
			t.Errorf("QueryStatus with response %q = nil error, want an error", answer)
		}
	}

	// The ranks -1 and 99 and the name with an escape sequence are invalid. Rank 1 has no counts,
	// which means 0 calls.
	hostileResponse := `{"communicators":[{"hash":"0x1","size":2,"ranks":[{"rank":-1},{"rank":99},` +
		`{"rank":0,"collective_counts":{"AllReduce":1,"\u001b[2J":7}},` +
		`{"rank":1,"collective_counts":null}]}]}`
	status, err := ras.QueryStatus(t.Context(), startServer(t, hostileResponse))
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

// TestAddress passes functions like os.Getenv to Address: one without variables, and one in which
// the variable of the address is set.
func TestAddress(t *testing.T) {
	if got := ras.Address(func(string) string { return "" }); got != "localhost:28028" {
		t.Errorf("Address without the variable = %q, want localhost:28028", got)
	}

	if got := ras.Address(func(string) string { return "h:1" }); got != "h:1" {
		t.Errorf("Address with the variable h:1 = %q, want h:1", got)
	}
}
