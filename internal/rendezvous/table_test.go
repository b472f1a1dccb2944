package rendezvous

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestTable runs the transcripts in testdata, each with a new table: the state of a store. A line
// of input is a request of the form "CLIENT QUERY FIELDS", where the client is one letter, or
// "CLIENT leaves". The output has the replies, and the numbers of clients that wait and of keys for
// which they wait. go test -rewrite updates the transcripts.
func TestTable(t *testing.T) {
	datadriven.RunTest(t, "testdata/table", func(t *testing.T, d *datadriven.TestData) string {
		table := newTable()
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			fields := strings.Fields(line)
			from := clientID(fields[0][0])
			out.WriteString(strings.TrimSpace(line) + "\n")
			if fields[1] == "leaves" {
				table.cancelWait(from)
				continue
			}

			replies, err := table.apply(from, parseRequest(t, fields[1], fields[2:]))
			for _, r := range replies {
				fmt.Fprintf(&out, "    %c: %q\n", rune(r.to), r.bytes)
			}

			if err != nil {
				fmt.Fprintf(&out, "    %v\n", err)
			}
		}

		fmt.Fprintf(&out, "waiting %d, watched %d\n", len(table.waiterByClient), len(table.waitersByKey))
		return out.String()
	})
}

// parseRequest returns the request with the given query name. The fields are its keys, each
// followed by its values, and its number if it has one.
func parseRequest(t *testing.T, name string, fields []string) *request {
	t.Helper()
	q := slices.IndexFunc(requestFormats[:], func(f requestFormat) bool { return f.name == name })
	if q < 0 {
		t.Fatalf("unknown query %q in a transcript", name)
	}

	r := &request{query: query(q)}
	format := requestFormats[q]
	if format.hasNumber {
		last := len(fields) - 1
		if _, err := fmt.Sscan(fields[last], &r.number); err != nil {
			t.Fatal(err)
		}

		fields = fields[:last]
	}

	for group := range slices.Chunk(fields, 1+format.valuesPerKey) {
		r.keys = append(r.keys, group[0])
		for _, value := range group[1:] {
			r.values = append(r.values, []byte(value))
		}
	}

	return r
}

// drawRequest returns a random request with the fields that its query has.
func drawRequest(t *rapid.T) *request {
	r := &request{query: query(rapid.IntRange(0, int(queryCount)-1).Draw(t, "query"))}
	format := requestFormats[r.query]
	keys := format.fixedKeys
	if format.hasKeyCount {
		keys = rapid.IntRange(0, 4).Draw(t, "keys")
	}

	for range keys {
		r.keys = append(r.keys, rapid.StringN(0, 9, -1).Draw(t, "key"))
		for range format.valuesPerKey {
			r.values = append(r.values, rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value"))
		}
	}

	if format.hasNonce {
		r.nonce = rapid.Uint32().Draw(t, "nonce")
	}

	if format.hasNumber {
		r.number = rapid.Int64().Draw(t, "number")
	}

	return r
}

// TestRequestRoundTrip encodes random requests and decodes them. The decoder must read exactly the
// bytes of the request.
func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRequest(t)
		d := newDecoder(bytes.NewReader(want.encode(nil)), "test")
		got, err := d.readRequest(maxRequestBytes)
		if err != nil {
			t.Fatal(err)
		}

		if diff := cmp.Diff(want, got, cmp.AllowUnexported(request{})); diff != "" {
			t.Fatal(diff)
		}

		_, err = d.readRequest(maxRequestBytes)
		if err != io.EOF { //nolint:errorlint // returned unwrapped
			t.Fatalf("after the request: got %v, want io.EOF", err)
		}
	})
}

// checkTable checks that no client waits for a key that is set, and that the maps waitersByKey and
// waiterByClient contain the same waits.
func checkTable(t *rapid.T, table *table) {
	entryDifference := 0 // entries of waitersByKey minus missing keys in waiterByClient
	for key, waiters := range table.waitersByKey {
		isSet := !table.isMissing(key) && len(table.queues[key]) == 0
		if isSet {
			t.Fatalf("%d clients wait for key %q, although it is set", len(waiters), key)
		}

		if len(waiters) == 0 {
			t.Fatalf("waitersByKey has an entry for key %q without clients", key)
		}

		entryDifference += len(waiters)
	}

	for client, w := range table.waiterByClient {
		if w.client != client {
			t.Fatalf("waiterByClient has client %d under client %d", w.client, client)
		}

		if len(w.missingKeys) == 0 && w.barrier == nil {
			t.Fatalf("client %d waits neither for a key nor at a barrier", client)
		}

		entryDifference -= len(w.missingKeys)
	}

	if entryDifference != 0 {
		t.Fatalf("waitersByKey has %d entries more than waiterByClient has missing keys, want 0",
			entryDifference)
	}
}

// drawStep returns a random request about a few keys. WAIT is more likely than other queries.
func drawStep(t *rapid.T) *request {
	key := rapid.SampledFrom([]string{"a", "b", "c"})
	queries := []query{
		querySet, queryDelete, queryWait, queryWait, queryCancelWait, queryAdd, queryQueuePush,
		queryQueuePop, queryCompareSet, queryBarrier,
	}
	r := &request{
		query:  rapid.SampledFrom(queries).Draw(t, "query"),
		number: 2, // the operand of ADD, or the number of clients at a BARRIER
	}
	format := requestFormats[r.query]
	r.keys = []string{key.Draw(t, "key"), key.Draw(t, "other key")}
	if !format.hasKeyCount {
		r.keys = r.keys[:1]
	}

	r.values = [][]byte{[]byte("1"), []byte("2")}[:format.valuesPerKey]
	return r
}

// TestEveryWaitIsAnsweredOnce sends random requests from a few clients. A WAIT or BARRIER must
// either be answered at once or make its client wait. A second one by a client that already waits
// is an error.
func TestEveryWaitIsAnsweredOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newTable()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			from := clientID(rapid.IntRange(1, 4).Draw(t, "client"))
			r := drawStep(t)
			wasWaiting := table.waiterByClient[from] != nil
			replies, err := table.apply(from, r)
			isWait := r.query == queryWait || r.query == queryBarrier
			wantError := isWait && wasWaiting
			if (err != nil) != wantError {
				t.Fatalf("%s from a client that already waits (%t): got error %v, want one only for a "+
					"second wait", r.query, wasWaiting, err)
			}

			isAnswered := slices.ContainsFunc(replies, func(x reply) bool {
				return x.to == from && bytes.Equal(x.bytes, []byte{replyWaitOver})
			})
			isWaiting := table.waiterByClient[from] != nil
			if isWait && !wasWaiting && isAnswered == isWaiting {
				t.Fatalf("%s: answered and waiting are both %t, want exactly one of them", r.query,
					isAnswered)
			}

			checkTable(t, table)
		}
	})
}

// FuzzServer sends arbitrary bytes to a server. The server must not panic, and must end the session
// (of one connection) when the client has disconnected.
func FuzzServer(f *testing.F) {
	for _, x := range exchanges {
		f.Add(parseBytes(f, validateBytes+x.send))
	}

	f.Fuzz(func(t *testing.T, b []byte) {
		s := newServer("fuzz", "")
		clientEnd, serverEnd := net.Pipe()
		const isRemote = true
		s.startSession(serverEnd, isRemote)
		go func() { _, _ = io.Copy(io.Discard, clientEnd) }()
		_, _ = clientEnd.Write(b) // fails if the server has closed its end
		clientEnd.Close()
		if err := s.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}

		if err := s.Close(); err != nil || len(s.sessions) != 0 {
			t.Fatalf("Close = %v with %d sessions remaining, want nil and 0", err, len(s.sessions))
		}
	})
}

// FuzzClient answers a client's calls with arbitrary bytes. The calls must return.
func FuzzClient(f *testing.F) {
	for _, x := range exchanges {
		f.Add(parseBytes(f, x.want))
	}

	f.Fuzz(func(_ *testing.T, b []byte) {
		calls := []func(c *Client) error{
			func(c *Client) error { return c.Set(context.Background(), "k", nil) },
			func(c *Client) error { return c.Wait(context.Background(), "k") },
			func(c *Client) error { _, err := c.Get(context.Background(), "a"); return err },
			func(c *Client) error { _, err := c.Add(context.Background(), "k", 1); return err },
		}
		for _, call := range calls {
			clientEnd, serverEnd := net.Pipe()
			// Both goroutines end when an end of the pipe is closed.
			go func() { _, _ = io.Copy(io.Discard, serverEnd) }()
			go func() {
				_, _ = serverEnd.Write(b)
				serverEnd.Close()
			}()
			l := newLink(clientEnd, "fuzz")
			// The client uses l for its first call, and cannot connect again.
			c := newClient("fuzz", func(context.Context) (*link, error) { return nil, ErrLost })
			c.addIdle(l)
			_ = call(c) // may return any error
			c.Close()
		}
	})
}
