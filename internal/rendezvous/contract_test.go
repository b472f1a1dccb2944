package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestStoreContract runs contractTests with each kind of client, each with a new store.
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

// contractTests has a test of every property that all stores have. Each gets a client of a new
// store.
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
	for _, step := range []struct{ delta, sum int64 }{
		{delta: 5, sum: 5},
		{delta: -7, sum: -2},
		{delta: 0, sum: -2},
	} {
		sum, err := s.Add(testContext(t), "n", step.delta)
		if err != nil || sum != step.sum {
			t.Fatalf("Add(%d) = %d, %v; want %d", step.delta, sum, err, step.sum)
		}
	}

	checkValue(t, s, "n", "-2") // Numbers are stored as decimal text.
}

func testCompareSet(t *testing.T, s *Client) {
	// CompareSet stores desired if the key has the expected value, and returns the value afterwards
	// or, if the key is missing, the expected one. An empty expected value means that the key is
	// missing. The calls are in this order.
	rows := []struct{ expected, desired, want string }{
		{"other", "x", "other"}, // stores nothing, because the key is missing
		{"", "one", "one"},
		{"", "two", "one"},
		{"one", "two", "two"},
		{"two", "", ""},
	}
	for _, r := range rows {
		got, err := s.CompareSet(testContext(t), "k", []byte(r.expected), []byte(r.desired))
		if err != nil || string(got) != r.want {
			t.Fatalf("CompareSet(%q, %q) = %q, %v; want %q",
				r.expected, r.desired, got, err, r.want)
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
	mustSet(t, s, "here", "")
	cause := errors.New("test cause")
	err := waitUntilCanceled(t, s, cause, "here", "there", "nowhere")
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), `here" and 2 more`) {
		t.Fatalf("Wait = %v, want an error that contains the cause and %q", err, `here" and 2 more`)
	}
}

// waitUntilCanceled waits for keys, cancels the wait with a cause and returns its error. The cancel
// may come before the server receives the wait.
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

// testWaitDoesNotBlock starts goroutines that each wait for a key and then set the next one. It
// would hang if a wait blocked the calls of other goroutines.
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
		"Set of a long key":      s.Set(ctx, longKey, nil), // with the slash that the store adds
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
