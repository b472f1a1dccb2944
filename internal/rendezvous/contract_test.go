package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestStoreContract runs one suite over every kind of store.
func TestStoreContract(t *testing.T) {
	kinds := map[string]func(t *testing.T) *Client{
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
			_, c := serveOn(t, privateName(), "")
			return c
		},
		"unix with token and prefix": func(t *testing.T) *Client {
			_, c := serveOn(t, privateName(), NewToken())
			return WithPrefix(WithPrefix(c, "a"), "b/")
		},
		"in the server's process": func(t *testing.T) *Client {
			s, _ := serveOn(t, "127.0.0.1:0", NewToken())
			c := s.Client()
			closeLater(t, c)
			return c
		},
	}
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			for law, check := range contract {
				t.Run(law, func(t *testing.T) { check(t, open(t)) })
			}
		})
	}
}

var contract = map[string]func(t *testing.T, s *Client){
	"Get returns the value of Set":                       lawSetGet,
	"Add starts from zero":                               lawAdd,
	"CompareSet stores only if the value is as expected": lawCompareSet,
	"Get waits for a missing key":                        lawGetWaits,
	"the error of a cancelled Wait contains the keys":    lawWaitNames,
	"a cancelled wait leaves the store usable":           lawCancelled,
	"concurrent Adds are all counted":                    lawConcurrent,
	"a waiting call does not block another":              lawNoHoldUp,
	"too large requests are refused":                     lawTooLarge,
}

func mustSet(t *testing.T, s *Client, key, value string) {
	t.Helper()
	if err := s.Set(testContext(t), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func wantValue(t *testing.T, s *Client, key, want string) {
	t.Helper()
	got, err := s.Get(testContext(t), key)
	if err != nil || string(got) != want {
		t.Fatalf("Get(%q) = %.80q, %v; want %.80q", key, got, err, want)
	}
}

func lawSetGet(t *testing.T, s *Client) {
	values := map[string]string{
		"": "empty key", "empty": "", "a/b": "\x00\xff", "k\x00": "zero",
		strings.Repeat("k", 4<<10): "long key", "big": strings.Repeat("v", maxValueBytes),
	}
	for key, value := range values {
		mustSet(t, s, key, value)
	}
	for key, value := range values {
		wantValue(t, s, key, value)
	}
	mustSet(t, s, "a/b", "again")
	wantValue(t, s, "a/b", "again")
}

func lawAdd(t *testing.T, s *Client) {
	for _, step := range []struct{ delta, sum int64 }{{5, 5}, {-7, -2}, {0, -2}} {
		sum, err := s.Add(testContext(t), "n", step.delta)
		if err != nil || sum != step.sum {
			t.Fatalf("Add(%d) = %d, %v; want %d", step.delta, sum, err, step.sum)
		}
	}
	wantValue(t, s, "n", "-2")
}

func lawCompareSet(t *testing.T, s *Client) {
	rows := []struct{ expected, desired, want string }{
		{"other", "x", "other"}, // missing key with an expectation: nothing is stored
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

func lawGetWaits(t *testing.T, s *Client) {
	got := make(chan string, 1)
	ctx := testContext(t)
	go func() {
		value, err := s.Get(ctx, "later")
		got <- fmt.Sprintf("%s %v", value, err)
	}()
	mustSet(t, s, "later", "v")
	if got := <-got; got != "v <nil>" {
		t.Fatal(got)
	}
}

func lawWaitNames(t *testing.T, s *Client) {
	mustSet(t, s, "here", "")
	cause := errors.New("test cause")
	err := waitUntilCancelled(t, s, cause, "here", "there", "nowhere")
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), `here" and 2 more`) {
		t.Fatalf("%v lacks the cause or the keys", err)
	}
}

// waitUntilCancelled cancels a wait before or after the server has received it: the outcome must be
// the same.
func waitUntilCancelled(t *testing.T, s *Client, cause error, keys ...string) error {
	t.Helper()
	ctx, cancel := context.WithCancelCause(testContext(t))
	done := make(chan error, 1)
	go func() { done <- s.Wait(ctx, keys...) }()
	mustSet(t, s, "turn", "v")
	cancel(cause)
	return <-done
}

func lawCancelled(t *testing.T, s *Client) {
	for range 5 {
		err := waitUntilCancelled(t, s, context.Canceled, "never")
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	mustSet(t, s, "never", "late")
	wantValue(t, s, "never", "late")
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := s.Set(ctx, "k", nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("Set with an expired context: %v", err)
	}
}

func lawConcurrent(t *testing.T, s *Client) {
	const callers, each = 8, 25
	ctx := testContext(t)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				if _, err := s.Add(ctx, "n", 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	wantValue(t, s, "n", fmt.Sprint(callers*each))
}

func lawNoHoldUp(t *testing.T, s *Client) {
	const chain = 16
	ctx := testContext(t)
	var all sync.WaitGroup
	for i := range chain {
		all.Go(func() {
			if err := s.Wait(ctx, fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
			if err := s.Set(ctx, fmt.Sprint(i+1), nil); err != nil {
				t.Error(err)
			}
		})
	}
	mustSet(t, s, "0", "")
	wantValue(t, s, fmt.Sprint(chain), "")
	all.Wait()
}

func lawTooLarge(t *testing.T, s *Client) {
	ctx := testContext(t)
	long := strings.Repeat("k", maxKeyBytes)
	errs := []error{
		s.Set(ctx, long, nil),
		s.Set(ctx, "k", make([]byte, maxValueBytes+1)),
		s.Wait(ctx, make([]string, maxKeys+1)...),
	}
	for i, err := range errs {
		if !errors.Is(err, ErrTooLarge) {
			t.Fatalf("row %d: %v", i, err)
		}
	}
	mustSet(t, s, "k", "v")
	wantValue(t, s, "k", "v")
}
