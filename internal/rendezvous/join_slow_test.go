package rendezvous

import (
	"testing"
	"time"
)

// TestJoinWithSlowStore locks the store for longer than lateRequestTimeout. Joining must not fail,
// because its context has no deadline.
func TestJoinWithSlowStore(t *testing.T) {
	t.Parallel()
	server := newServer("this process", "")
	defer server.Close()
	m := &Member{world: World{Size: 2}, worldClient: server.Client()}
	defer m.worldClient.Close()
	if err := m.publishReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}

	for name, step := range map[string]func() error{
		"publishReady": func() error { return m.publishReady(t.Context(), nil) },
		"awaitReady":   func() error { return m.awaitReady(t.Context()) },
	} {
		server.mu.Lock()
		result := make(chan error, 1)
		go func() { result <- step() }()
		<-time.After(lateRequestTimeout + lateRequestTimeout/4)
		server.mu.Unlock()
		if err := <-result; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
