package rendezvous

import (
	"net"
	"testing"
	"time"
)

// TestServerLimitsPendingReplies sends requests until the server stops reading them, and reads no
// reply.
func TestServerLimitsPendingReplies(t *testing.T) {
	s := newServer("test", "")
	defer s.Close()
	client, server := net.Pipe()
	defer client.Close()
	if !s.startSession(server, false) {
		t.Fatal("the server is closed")
	}

	value := make([]byte, outboxLimit/2)
	b := (&request{query: queryValidate, nonce: protocolMagic}).encode(nil)
	b = (&request{query: querySet, keys: []string{"k"}, values: [][]byte{value}}).encode(b)
	get := (&request{query: queryGet, keys: []string{"k"}}).encode(nil)
	_ = client.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := client.Write(b)
	sent := 0
	for ; err == nil && sent < 100; sent++ {
		_, err = client.Write(get)
	}

	if err == nil {
		t.Fatalf("the server has read %d requests without a limit", sent)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		sess.outbox.mu.Lock()
		pending := len(sess.outbox.pending)
		sess.outbox.mu.Unlock()
		if want := outboxLimit + len(value) + 8; pending > want {
			t.Errorf("got %d bytes of pending replies, want at most %d", pending, want)
		}
	}
}
