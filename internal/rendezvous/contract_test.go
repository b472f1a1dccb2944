package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// A store maps keys to values. The client of a store can be in the server's process, or connect to
// it over TCP or a Unix socket, or use a prefix: with the prefix "a", the key "k" of the program is
// another key in the store. The tests check properties that do not depend on the kind of client.

// TestStoreContract runs contractTests with each kind of client. Each test gets a new store.
func TestStoreContract(t *testing.T) {
	newClients := map[string]func(t *testing.T) *Client{
		"local": func(t *testing.T) *Client {
			c := NewLocal()
			closeLater(t, c)
			return c
		},
		"tcp": func(t *testing.T) *Client {
			_, c := serveOn(t, "127.0.0.1:0", NewToken())
			return c
		},
		"unix": func(t *testing.T) *Client {
			_, c := serveOn(t, privateAddress(), "")
			return c
		},
		"unix with token and prefix": func(t *testing.T) *Client {
			_, c := serveOn(t, privateAddress(), NewToken())
			return WithPrefix(WithPrefix(c, "a"), "b/")
		},
		"in the server's process": func(t *testing.T) *Client {
			s, _ := serveOn(t, "127.0.0.1:0", NewToken())
			c := s.Client()
			closeLater(t, c)
			return c
		},
	}
	for kind, newClient := range newClients {
		t.Run(kind, func(t *testing.T) {
			for name, test := range contractTests {
				t.Run(name, func(t *testing.T) { test(t, newClient(t)) })
			}
		})
	}
}

// contractTests has a test for each property of a store. Each test gets a client of a new store.
var contractTests = map[string]func(t *testing.T, s *Client){
	"Get returns the value of Set":                             testSetGet,
	"Add starts from zero":                                     testAdd,
	"CompareSet stores only if the key has the expected value": testCompareSet,
	"Get waits for a missing key":                              testGetWaits,
	"the error of a canceled Wait mentions the keys":           testWaitErrorListsKeys,
	"the store is usable after a canceled wait":                testCanceledWait,
	"concurrent Adds are all counted":                          testConcurrentAdds,
	"a waiting call does not block another":                    testWaitDoesNotBlock,
	"requests that are too large are refused":                  testTooLarge,
}

// mustSet sets a key, or ends the test after an error.
func mustSet(t *testing.T, s *Client, key, value string) {
	t.Helper()
	if err := s.Set(testContext(t), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// checkValue waits until a key is set, and ends the test if it has another value than want.
func checkValue(t *testing.T, s *Client, key, want string) {
	t.Helper()
	got, err := s.Get(testContext(t), key)
	if err != nil || string(got) != want {
		t.Fatalf("Get(%q) = %.80q, %v; want %.80q", key, got, err, want)
	}
}

func testSetGet(t *testing.T, s *Client) {
	values := map[string]string{ // by key
		"":                         "empty key",
		"empty":                    "",
		"a/b":                      "\x00\xff",
		"k\x00":                    "zero",
		strings.Repeat("k", 4<<10): "long key",
		"big":                      strings.Repeat("v", maxValueBytes),
	}
	for key, value := range values {
		mustSet(t, s, key, value)
	}

	for key, value := range values {
		checkValue(t, s, key, value)
	}

	mustSet(t, s, "a/b", "again")
	checkValue(t, s, "a/b", "again")
}

func testAdd(t *testing.T, s *Client) {
	for _, step := range []struct{ delta, wantSum int64 }{
		{delta: 5, wantSum: 5},
		{delta: -7, wantSum: -2},
		{delta: 0, wantSum: -2},
	} {
		sum, err := s.Add(testContext(t), "n", step.delta)
		if err != nil || sum != step.wantSum {
			t.Fatalf("Add(%d) = %d, %v; want %d", step.delta, sum, err, step.wantSum)
		}
	}

	checkValue(t, s, "n", "-2") // Numbers are stored as decimal text.
}

func testCompareSet(t *testing.T, s *Client) {
	// CompareSet stores desired if the key has the expected value. An empty expected value means that
	// the key is missing. The calls are made in this order, for the same key.
	for _, call := range []struct {
		expected string
		desired  string
		want     string // the value afterwards, or expected if the key is still missing
	}{
		{expected: "other", desired: "x", want: "other"}, // stores nothing: the key is missing
		{expected: "", desired: "one", want: "one"},
		{expected: "", desired: "two", want: "one"}, // stores nothing: the value is "one"
		{expected: "one", desired: "two", want: "two"},
		{expected: "two", desired: "", want: ""},
	} {
		got, err := s.CompareSet(testContext(t), "k", []byte(call.expected), []byte(call.desired))
		if err != nil || string(got) != call.want {
			t.Fatalf("CompareSet(%q, %q) = %q, %v; want %q",
				call.expected, call.desired, got, err, call.want)
		}
	}
}

func testGetWaits(t *testing.T, s *Client) {
	type result struct {
		value []byte
		err   error
	}
	done := make(chan result, 1)
	ctx := testContext(t)
	go func() {
		value, err := s.Get(ctx, "later")
		done <- result{value, err}
	}()
	mustSet(t, s, "later", "v")
	if got := <-done; string(got.value) != "v" || got.err != nil {
		t.Fatalf("Get = %q, %v; want %q", got.value, got.err, "v")
	}
}

func testWaitErrorListsKeys(t *testing.T, s *Client) {
	const want = `here" and 2 more`
	mustSet(t, s, "here", "")
	cause := errors.New("test cause")
	err := waitUntilCanceled(t, s, cause, "here", "there", "nowhere")
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), want) {
		t.Fatalf("Wait = %v, want an error that contains the cause and %q", err, want)
	}
}

// waitUntilCanceled calls Wait for keys, cancels it with a cause and returns its error. The server
// may receive the wait before this, after it or never.
func waitUntilCanceled(t *testing.T, s *Client, cause error, keys ...string) error {
	t.Helper()
	ctx, cancel := context.WithCancelCause(testContext(t))
	done := make(chan error, 1)
	go func() { done <- s.Wait(ctx, keys...) }()
	mustSet(t, s, "other key", "v") // gives the wait some time to reach the server
	cancel(cause)
	return <-done
}

func testCanceledWait(t *testing.T, s *Client) {
	for range 5 { // so that some waits reach the server and others do not
		err := waitUntilCanceled(t, s, context.Canceled, "never")
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait = %v, want context.Canceled", err)
		}
	}

	// After the canceled waits, calls must still work, and be canceled in time.
	mustSet(t, s, "never", "late")
	checkValue(t, s, "never", "late")
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := s.Set(ctx, "k", nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("Set with a canceled context = %v, want context.Canceled", err)
	}
}

func testConcurrentAdds(t *testing.T, s *Client) {
	const callerCount, callCount = 8, 25
	ctx := testContext(t)
	var goroutines sync.WaitGroup
	for range callerCount {
		goroutines.Go(func() {
			for range callCount {
				if _, err := s.Add(ctx, "n", 1); err != nil {
					t.Error(err)
				}
			}
		})
	}

	goroutines.Wait()
	checkValue(t, s, "n", fmt.Sprint(callerCount*callCount))
}

// testWaitDoesNotBlock starts goroutines. Each waits for a key and then sets the next one: the
// first waits for "0" and sets "1". The test would hang if a wait blocked other goroutines.
func testWaitDoesNotBlock(t *testing.T, s *Client) {
	const goroutineCount = 16
	ctx := testContext(t)
	var goroutines sync.WaitGroup
	for i := range goroutineCount {
		goroutines.Go(func() {
			if err := s.Wait(ctx, fmt.Sprint(i)); err != nil {
				t.Error(err)
			}

			if err := s.Set(ctx, fmt.Sprint(i+1), nil); err != nil {
				t.Error(err)
			}
		})
	}

	mustSet(t, s, "0", "")
	checkValue(t, s, fmt.Sprint(goroutineCount), "")
	goroutines.Wait()
}

func testTooLarge(t *testing.T, s *Client) {
	ctx := testContext(t)
	longKey := strings.Repeat("k", maxKeyBytes)
	for name, err := range map[string]error{
		"Set of a long key":      s.Set(ctx, longKey, nil), // one byte too long: the client adds a slash
		"Set of a long value":    s.Set(ctx, "k", make([]byte, maxValueBytes+1)),
		"Wait for too many keys": s.Wait(ctx, make([]string, maxKeys+1)...),
	} {
		if !errors.Is(err, ErrTooLarge) {
			t.Fatalf("%s = %v, want ErrTooLarge", name, err)
		}
	}

	// The connection must still work.
	mustSet(t, s, "k", "v")
	checkValue(t, s, "k", "v")
}
