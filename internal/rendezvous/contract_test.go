package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

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

// contractTests run for every kind of client. Each test gets a client of a new store.
var contractTests = map[string]func(t *testing.T, c *Client){
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

func mustSet(t *testing.T, c *Client, key, value string) {
	t.Helper()
	if err := c.Set(testContext(t), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// checkValue waits until a key is set, and checks its value.
func checkValue(t *testing.T, c *Client, key, want string) {
	t.Helper()
	got, err := c.Get(testContext(t), key)
	if err != nil || string(got) != want {
		t.Fatalf("Get(%q) = %.80q, %v; want %.80q", key, got, err, want)
	}
}

func testSetGet(t *testing.T, c *Client) {
	values := map[string]string{ // by key
		"":                         "empty key",
		"empty":                    "",
		"a/b":                      "\x00\xff",
		"k\x00":                    "zero",
		strings.Repeat("k", 4<<10): "long key",
		"big":                      strings.Repeat("v", maxValueBytes),
	}
	for key, value := range values {
		mustSet(t, c, key, value)
	}

	for key, value := range values {
		checkValue(t, c, key, value)
	}

	mustSet(t, c, "a/b", "again")
	checkValue(t, c, "a/b", "again")
}

func testAdd(t *testing.T, c *Client) {
	for _, step := range []struct{ delta, wantSum int64 }{
		{delta: 5, wantSum: 5},
		{delta: -7, wantSum: -2},
		{delta: 0, wantSum: -2},
	} {
		sum, err := c.Add(testContext(t), "n", step.delta)
		if err != nil || sum != step.wantSum {
			t.Fatalf("Add(%d) = %d, %v; want %d", step.delta, sum, err, step.wantSum)
		}
	}

	checkValue(t, c, "n", "-2") // Numbers are stored as decimal text.
}

func testCompareSet(t *testing.T, c *Client) {
	// The key is missing until the second call.
	for _, call := range []struct {
		expected string
		desired  string
		want     string // the value afterwards, or expected if the key is still missing
	}{
		{expected: "other", desired: "x", want: "other"}, // does not match
		{expected: "", desired: "one", want: "one"},
		{expected: "", desired: "two", want: "one"}, // does not match
		{expected: "one", desired: "two", want: "two"},
		{expected: "two", desired: "", want: ""},
	} {
		got, err := c.CompareSet(testContext(t), "k", []byte(call.expected), []byte(call.desired))
		if err != nil || string(got) != call.want {
			t.Fatalf("CompareSet(%q, %q) = %q, %v; want %q",
				call.expected, call.desired, got, err, call.want)
		}
	}
}

func testGetWaits(t *testing.T, c *Client) {
	type result struct {
		value []byte
		err   error
	}
	done := make(chan result, 1)
	ctx := testContext(t)
	go func() {
		value, err := c.Get(ctx, "later")
		done <- result{value, err}
	}()
	mustSet(t, c, "later", "v")
	if got := <-done; string(got.value) != "v" || got.err != nil {
		t.Fatalf("Get = %q, %v; want %q", got.value, got.err, "v")
	}
}

func testWaitErrorListsKeys(t *testing.T, c *Client) {
	const want = `here" and 2 more` // names only the first of the three keys
	mustSet(t, c, "here", "")
	cause := errors.New("test cause")
	err := waitUntilCanceled(t, c, cause, "here", "there", "nowhere")
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), want) {
		t.Fatalf("Wait = %v, want an error that contains the cause and %q", err, want)
	}
}

// waitUntilCanceled calls Wait, cancels it and returns its error. The cancellation may come before
// the server receives the query.
func waitUntilCanceled(t *testing.T, c *Client, cause error, keys ...string) error {
	t.Helper()
	ctx, cancel := context.WithCancelCause(testContext(t))
	done := make(chan error, 1)
	go func() { done <- c.Wait(ctx, keys...) }()
	mustSet(t, c, "other key", "v") // usually allows the query to reach the server first
	cancel(cause)
	return <-done
}

func testCanceledWait(t *testing.T, c *Client) {
	const attempts = 5 // so that some queries reach the server before they are canceled
	for range attempts {
		err := waitUntilCanceled(t, c, context.Canceled, "never")
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait = %v, want context.Canceled", err)
		}
	}

	// Later calls work and can be canceled.
	mustSet(t, c, "never", "late")
	checkValue(t, c, "never", "late")
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := c.Set(ctx, "k", nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("Set with a canceled context = %v, want context.Canceled", err)
	}
}

func testConcurrentAdds(t *testing.T, c *Client) {
	const callerCount, callCount = 8, 25
	ctx := testContext(t)
	var goroutines sync.WaitGroup
	for range callerCount {
		goroutines.Go(func() {
			for range callCount {
				if _, err := c.Add(ctx, "n", 1); err != nil {
					t.Error(err)
				}
			}
		})
	}

	goroutines.Wait()
	checkValue(t, c, "n", fmt.Sprint(callerCount*callCount))
}

// testWaitDoesNotBlock starts goroutines that form a chain: each waits for a key and then sets the
// key for which the next one waits. The test would hang if a Wait blocked other goroutines.
func testWaitDoesNotBlock(t *testing.T, c *Client) {
	const goroutineCount = 16
	ctx := testContext(t)
	var goroutines sync.WaitGroup
	for i := range goroutineCount {
		goroutines.Go(func() {
			ownKey, nextKey := fmt.Sprint(i), fmt.Sprint(i+1)
			if err := c.Wait(ctx, ownKey); err != nil {
				t.Error(err)
			}

			if err := c.Set(ctx, nextKey, nil); err != nil {
				t.Error(err)
			}
		})
	}

	mustSet(t, c, "0", "") // starts the chain
	lastKey := fmt.Sprint(goroutineCount)
	checkValue(t, c, lastKey, "")
	goroutines.Wait()
}

func testTooLarge(t *testing.T, c *Client) {
	ctx := testContext(t)
	longKey := strings.Repeat("k", maxKeyBytes) // The client adds a slash.
	for name, err := range map[string]error{
		"Set of a long key":      c.Set(ctx, longKey, nil),
		"Set of a long value":    c.Set(ctx, "k", make([]byte, maxValueBytes+1)),
		"Wait for too many keys": c.Wait(ctx, make([]string, maxKeys+1)...),
	} {
		if !errors.Is(err, ErrTooLarge) {
			t.Fatalf("%s = %v, want ErrTooLarge", name, err)
		}
	}

	// The connection is still usable.
	mustSet(t, c, "k", "v")
	checkValue(t, c, "k", "v")
}
