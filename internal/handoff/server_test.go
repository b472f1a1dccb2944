package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/internal/sys"
)

// testTimeout bounds waits. It expires only if a test hangs.
const testTimeout = 30 * time.Second

var token = Token{1, 2, 3}

func newServer(t *testing.T) *Server {
	t.Helper()
	s, err := Listen(token)
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

func newPeer(t *testing.T, s *Server, token Token) *Peer {
	t.Helper()
	p, err := Dial(t.Context(), s.Address(), token)
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	return p
}

// newMemory returns a file of shared memory. Tests identify the file by its size.
func newMemory(t *testing.T, bytes int64) *os.File {
	t.Helper()
	f, err := sys.Memfd("test", bytes)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

func export(t *testing.T, s *Server, key Key, bytes int64) *os.File {
	t.Helper()
	f := newMemory(t, bytes)
	s.Export(key, f)
	t.Cleanup(func() { s.Withdraw(key) })
	return f
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func socketName(name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@symmem-test-%d-%s", os.Getpid(), name)}
}

func fetchSize(p *Peer, key Key) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return sys.FileSize(f)
}

func TestFetchReturnsFileExportedUnderKey(t *testing.T) {
	s := newServer(t)
	p := newPeer(t, s, token)
	keys := []Key{{Namespace: 1}, {Namespace: 2}, {Namespace: 1, Number: 1}}
	for i, key := range keys {
		export(t, s, key, int64(4096*(i+1)))
	}

	for i, key := range keys {
		if size, err := fetchSize(p, key); err != nil || size != int64(4096*(i+1)) {
			t.Errorf("Fetch(%+v) = file of %d bytes, %v; want %d bytes", key, size, err, 4096*(i+1))
		}
	}

	if _, err := fetchSize(p, Key{Namespace: 9}); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("Fetch of a key without an export = %v; want ErrUnknownKey", err)
	}

	s.Withdraw(keys[0])
	if _, err := fetchSize(p, keys[0]); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("Fetch of a withdrawn key = %v; want ErrUnknownKey", err)
	}

	if size, err := fetchSize(p, keys[1]); err != nil || size != 8192 {
		t.Errorf("Fetch after an error = file of %d bytes, %v; want 8192 bytes", size, err)
	}
}

func TestFetchedFileSharesMemory(t *testing.T) {
	s := newServer(t)
	f := export(t, s, Key{}, 4096)
	got, err := newPeer(t, s, token).Fetch(t.Context(), Key{})
	check(t, err)
	defer got.Close()
	_, err = f.WriteAt([]byte("shared"), 100)
	check(t, err)
	text := make([]byte, 6)
	_, err = got.ReadAt(text, 100)
	check(t, err)
	if string(text) != "shared" {
		t.Errorf("read %q, want %q", text, "shared")
	}
}

func TestWrongTokenIsRefused(t *testing.T) {
	s := newServer(t)
	export(t, s, Key{}, 4096)
	p := newPeer(t, s, Token{9})
	if _, err := fetchSize(p, Key{}); !errors.Is(err, ErrRefused) {
		t.Errorf("Fetch with a wrong token = %v; want ErrRefused", err)
	}

	if _, err := fetchSize(p, Key{}); err == nil {
		t.Error("second Fetch with a wrong token succeeded, want an error")
	}

	if size, err := fetchSize(newPeer(t, s, token), Key{}); err != nil || size != 4096 {
		t.Errorf("Fetch by the next peer = file of %d bytes, %v; want 4096 bytes", size, err)
	}
}

func TestInvalidRequestClosesConnection(t *testing.T) {
	s := newServer(t)
	for name, text := range map[string]string{
		"different protocol": strings.Repeat("GET / HTTP/1.1\r\n", 4)[:requestBytes],
		"zeros":              string(make([]byte, requestBytes)),
	} {
		c, err := net.Dial("unix", s.Address())
		check(t, err)
		_, err = c.Write([]byte(text))
		check(t, err)
		if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
			t.Errorf("%s: got response %q, %v; want none", name, got, err)
		}

		check(t, c.Close())
	}
}

func TestCloseEndsConnectionsAndPartialRequests(t *testing.T) {
	s, err := Listen(token)
	check(t, err)
	idle, err := Dial(t.Context(), s.Address(), token)
	check(t, err)
	defer idle.Close()
	partial, err := net.Dial("unix", s.Address())
	check(t, err)
	defer partial.Close()
	_, err = partial.Write(encodeRequest(token, Key{})[:5])
	check(t, err)
	check(t, s.Close())
	if _, err := partial.Read(make([]byte, 1)); err == nil {
		t.Error("a partial request got a response")
	}

	if _, err := fetchSize(idle, Key{}); err == nil {
		t.Error("Fetch from a closed server succeeded")
	}

	if p, err := Dial(t.Context(), s.Address(), token); err == nil {
		t.Error("Dial of a closed server succeeded")
		check(t, p.Close())
	}
}

func TestFetchEndsWithContext(t *testing.T) {
	// The test never accepts a connection on this socket, so there is no response.
	silent, err := net.ListenUnix("unix", socketName("silent"))
	check(t, err)
	defer silent.Close()
	p, err := Dial(t.Context(), silent.Addr().String(), token)
	check(t, err)
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Fetch(ctx, Key{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestFetchAfterDeadline fetches a file after the deadline, like a process that was stopped before
// it sent the request. The peer is not late.
func TestFetchAfterDeadline(t *testing.T) {
	s := newServer(t)
	export(t, s, Key{Number: 1}, 4096)
	p := newPeer(t, s, token)
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	f, err := p.Fetch(ctx, Key{Number: 1})
	check(t, err)
	check(t, f.Close())
}

// TestAnswerIsReadAfterDeadline lets the deadline pass when the answer has arrived but has not been
// read.
func TestAnswerIsReadAfterDeadline(t *testing.T) {
	l, err := net.ListenUnix("unix", socketName(t.Name()))
	check(t, err)
	defer l.Close()
	c, err := net.DialUnix("unix", nil, socketName(t.Name()))
	check(t, err)
	defer c.Close()
	peer, err := l.AcceptUnix()
	check(t, err)
	defer peer.Close()
	_, err = peer.Write([]byte("answer"))
	check(t, err)
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	got := make([]byte, len("answer"))
	if _, err := requestFile(ctx, c, []byte("request"), got); err != nil || string(got) != "answer" {
		t.Errorf("requestFile = %v with %q, want the answer", err, got)
	}
}

func TestFetchRejectsInvalidResponses(t *testing.T) {
	memory := newMemory(t, 4096)
	for name, c := range map[string]struct {
		answer []byte
		file   *os.File
		want   error
	}{
		"found, without a descriptor": {encodeResponse(statusFound), nil, ErrProtocol},
		"different protocol":          {[]byte("HTTP/1.1"), nil, ErrProtocol},
		"unknown, with a descriptor":  {encodeResponse(statusUnknown), memory, ErrUnknownKey},
		"half a response":             {encodeResponse(statusFound)[:4], memory, nil},
	} {
		server, err := net.ListenUnix("unix", socketName("invalid"))
		check(t, err)
		p, err := Dial(t.Context(), server.Addr().String(), token)
		check(t, err)
		conn, err := server.AcceptUnix()
		check(t, err)
		check(t, sys.SendFile(conn, c.answer, c.file))
		if _, err := fetchSize(p, Key{}); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", name, err, c.want)
		}

		check(t, errors.Join(conn.Close(), p.Close(), server.Close()))
	}
}

func TestPeerIdentifiesOtherProcess(t *testing.T) {
	p := newPeer(t, newServer(t), token)
	if p.PID() != os.Getpid() {
		t.Errorf("PID() = %d, want %d", p.PID(), os.Getpid())
	}

	if err := p.Watch().SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}

	if err := sys.AwaitEnd(p.Watch()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("AwaitEnd of a live process = %v; want ErrDeadlineExceeded", err)
	}
}

func TestPeersFetchConcurrentlyWhileExportsChange(t *testing.T) {
	s := newServer(t)
	permanent, temporary := Key{Number: 1}, Key{Number: 2}
	export(t, s, permanent, 4096)
	memory := newMemory(t, 8192)
	var fetches sync.WaitGroup
	for range 8 {
		p := newPeer(t, s, token)
		for range 2 {
			fetches.Go(func() {
				for range 50 {
					if size, err := fetchSize(p, permanent); err != nil || size != 4096 {
						t.Errorf("permanent export: %d bytes, %v; want 4096 bytes", size, err)
					}

					size, err := fetchSize(p, temporary)
					if !errors.Is(err, ErrUnknownKey) && size != 8192 {
						t.Errorf("temporary export: %d bytes, %v; want 8192 bytes or ErrUnknownKey",
							size, err)
					}
				}
			})
		}
	}

	for range 100 {
		s.Export(temporary, memory)
		s.Withdraw(temporary)
	}

	fetches.Wait()
}

// TestLateResponseIsDiscarded checks that a Peer does not mistake the response to an abandoned
// request for the response to its next request. Such a mistake would give a window the wrong
// memory.
func TestLateResponseIsDiscarded(t *testing.T) {
	server, err := net.ListenUnix("unix", socketName("late"))
	check(t, err)
	p, err := Dial(t.Context(), server.Addr().String(), token)
	check(t, err)
	first, err := server.AcceptUnix()
	check(t, err)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Fetch(canceled, Key{Number: 1}); err == nil {
		t.Fatal("Fetch with a cancelled context succeeded")
	}

	// If the peer has wrongly kept its connection, this response arrives before the peer sends its
	// next request.
	_ = sys.SendFile(first, encodeResponse(statusFound), newMemory(t, 4096))
	expected := newMemory(t, 8192)
	var answering sync.WaitGroup
	answering.Go(func() {
		second, err := server.AcceptUnix()
		if err != nil {
			return
		}
		defer second.Close()
		if _, err := io.ReadFull(second, make([]byte, requestBytes)); err != nil {
			t.Error(err)
		}

		if err := sys.SendFile(second, encodeResponse(statusFound), expected); err != nil {
			t.Error(err)
		}
	})
	if size, err := fetchSize(p, Key{Number: 2}); err != nil || size != 8192 {
		t.Errorf("Fetch = file of %d bytes, %v; want 8192 bytes", size, err)
	}

	check(t, errors.Join(first.Close(), p.Close(), server.Close()))
	answering.Wait()
}

// TestFetchEndsDuringOtherRequest requests a file while an earlier request with a later deadline
// waits for a server that does not answer.
func TestFetchEndsDuringOtherRequest(t *testing.T) {
	listener, err := net.ListenUnix("unix", socketName("@"))
	check(t, err)
	defer listener.Close()
	p := newPeer(t, &Server{listener: listener}, Token{})
	conn, err := listener.Accept()
	check(t, err)
	defer conn.Close()
	first := make(chan error)
	firstCtx, cancelFirst := context.WithCancel(t.Context())
	go func() {
		_, err := p.Fetch(firstCtx, Key{})
		first <- err
	}()
	_, err = io.ReadFull(conn, make([]byte, 1)) // the first request has begun
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	second := make(chan error)
	go func() {
		_, err := p.Fetch(ctx, Key{})
		second <- err
	}()
	select {
	case err := <-second:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Fetch = %v, want %v", err, context.DeadlineExceeded)
		}
	case <-time.After(20 * time.Second):
		t.Error("Fetch waits for an earlier request after its own deadline")
	}

	cancelFirst()
	<-first
	if t.Failed() {
		<-second
	}
}
