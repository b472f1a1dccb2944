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

// TestTable runs the transcripts in testdata. A request has the form "<client> <QUERY> <fields>".
func TestTable(t *testing.T) {
	datadriven.RunTest(t, "testdata/table", func(t *testing.T, d *datadriven.TestData) string {
		table := newTable()
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			fields := strings.Fields(line)
			from := clientID(fields[0][0])
			out.WriteString(strings.TrimSpace(line) + "\n")
			if fields[1] == "leaves" {
				table.endWait(from)
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

// parseRequest parses the keys, values and number of a request.
func parseRequest(t *testing.T, name string, fields []string) *request {
	t.Helper()
	q := slices.IndexFunc(requestFormats[:], func(f requestFormat) bool { return f.name == name })
	if q < 0 {
		t.Fatalf("no query %q", name)
	}
	r := &request{query: query(q)}
	format := requestFormats[q]
	if format.hasNumber {
		if _, err := fmt.Sscan(fields[len(fields)-1], &r.number); err != nil {
			t.Fatal(err)
		}
		fields = fields[:len(fields)-1]
	}
	for group := range slices.Chunk(fields, 1+format.valueCount) {
		r.keys = append(r.keys, group[0])
		for _, value := range group[1:] {
			r.values = append(r.values, []byte(value))
		}
	}
	return r
}

func drawRequest(t *rapid.T) *request {
	r := &request{query: query(rapid.IntRange(0, int(queryCount)-1).Draw(t, "query"))}
	format := requestFormats[r.query]
	keys := format.keyCount
	if format.hasCount {
		keys = rapid.IntRange(0, 4).Draw(t, "keys")
	}
	for range keys {
		r.keys = append(r.keys, rapid.StringN(0, 9, -1).Draw(t, "key"))
		for range format.valueCount {
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

// checkTable checks that waitersByKey and waiterByClient match, and that no client waits for a key
// that is set.
func checkTable(t *rapid.T, table *table) {
	entryDifference := 0
	for key, waiters := range table.waitersByKey {
		if len(waiters) == 0 || !table.isMissing(key) && len(table.queues[key]) == 0 {
			t.Fatalf("%d clients wait for key %q, which is set; want none", len(waiters), key)
		}
		entryDifference += len(waiters)
	}
	for client, w := range table.waiterByClient {
		if w.client != client || len(w.missingKeys) == 0 && w.barrier == nil {
			t.Fatalf("client %d waits for nothing", client)
		}
		entryDifference -= len(w.missingKeys)
	}
	if entryDifference != 0 {
		t.Fatalf("waitersByKey has %d more entries than the waiters' missing keys", entryDifference)
	}
}

// TestEveryWaitIsAnsweredOnce sends random requests from a few clients about a few keys. Each WAIT
// and BARRIER must be answered exactly once, unless it is canceled.
func TestEveryWaitIsAnsweredOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newTable()
		key := rapid.SampledFrom([]string{"a", "b", "c"})
		queries := []query{
			querySet, queryDelete, queryWait, queryWait, queryCancelWait, queryAdd, queryQueuePush,
			queryQueuePop, queryCompareSet, queryBarrier,
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			from := clientID(rapid.IntRange(1, 4).Draw(t, "client"))
			r := &request{query: rapid.SampledFrom(queries).Draw(t, "query"), number: 2}
			r.keys = []string{key.Draw(t, "key"), key.Draw(t, "other key")}
			if !requestFormats[r.query].hasCount {
				r.keys = r.keys[:1]
			}
			r.values = [][]byte{[]byte("1"), []byte("2")}[:requestFormats[r.query].valueCount]
			wasWaiting := table.waiterByClient[from] != nil
			replies, err := table.apply(from, r)
			isWait := r.query == queryWait || r.query == queryBarrier
			if (err != nil) != (isWait && wasWaiting) {
				t.Fatalf("%s from a client with waiting = %v: got error %v", r.query, wasWaiting, err)
			}
			isAnswered := slices.ContainsFunc(replies, func(x reply) bool {
				return x.to == from && bytes.Equal(x.bytes, []byte{replyWaitOver})
			})
			if isWait && !wasWaiting && isAnswered == (table.waiterByClient[from] != nil) {
				t.Fatalf("%s: answered and waiting are both %v, want exactly one of them", r.query, isAnswered)
			}
			checkTable(t, table)
		}
	})
}

// FuzzServer sends arbitrary bytes to a server. The server must not panic, and must end the
// session when the client has disconnected.
func FuzzServer(f *testing.F) {
	for _, x := range exchanges {
		f.Add(parseBytes(f, validateBytes+x.send))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newServer("fuzz", "")
		ours, theirs := net.Pipe()
		s.startSession(theirs, true)
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		_, _ = ours.Write(b)
		ours.Close()
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
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			go func() { _, _ = theirs.Write(b); theirs.Close() }()
			l := newLink(ours, "fuzz")
			c := newClient("fuzz", func(context.Context) (*link, error) { return nil, ErrLost })
			c.addLink(l)
			_ = c.releaseLink(l, nil)
			_ = call(c)
			c.Close()
		}
	})
}
