package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
)

// Suppose that rank 0, which serves the store, ends while rank 1 is in Connect. Rank 1 then tries
// to connect again until its context ends. The error must say that rank 0 ended, although rank 1
// has not begun to watch for the ends of other ranks.

// TestEndOfRankZeroBeforeWatchIsReported ends the store of rank 0 before or after the handshake of
// rank 1. The error of Connect on rank 1 must report the end of rank 0.
func TestEndOfRankZeroBeforeWatchIsReported(t *testing.T) {
	for name, serve := range map[string]serveFunc{
		"before the handshake": func(*testing.T, net.Listener, net.Conn) {},
		"after the handshake":  serveHandshake,
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := Endpoint{Address: privateAddress()}
			l, err := listenUnix(endpoint)
			if err != nil {
				t.Fatal(err)
			}

			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			go func() {
				serveUntilEnd(t, l, endpoint, serve)
				cancel()
			}()
			w := worldsOf(2, Route{Kind: RouteServe, Endpoint: endpoint})[1]
			_, _, err = Connect(ctx, w)
			checkRankZeroEnded(t, err)
		})
	}
}

// serveFunc does what rank 0 does on the first connection of rank 1, until rank 0 ends.
type serveFunc func(t *testing.T, l net.Listener, conn net.Conn)

// serveHandshake answers the handshake of rank 1, and waits until rank 1 connects again to claim
// its rank.
func serveHandshake(t *testing.T, l net.Listener, conn net.Conn) {
	// The handshake is VALIDATE and PING. The answer is the nonce of the PING.
	d := newDecoder(conn, "rank 1")
	if _, err := d.readRequest(maxAuthBytes); err != nil { // VALIDATE
		t.Error(err)
		return
	}

	ping, err := d.readRequest(maxAuthBytes)
	if err != nil {
		t.Error(err)
		return
	}

	_, _ = conn.Write(binary.LittleEndian.AppendUint32(nil, ping.nonce))
	claimConn, err := l.Accept()
	if err != nil {
		t.Error(err)
		return
	}

	_ = claimConn.Close()
}

// serveUntilEnd calls serve with the first connection of rank 1, and then closes the store. It
// returns when rank 1 has noticed this and connects to the endpoint again, to look for another
// store.
func serveUntilEnd(t *testing.T, l net.Listener, endpoint Endpoint, serve serveFunc) {
	conn, err := l.Accept()
	if err != nil {
		t.Error(err)
		return
	}

	serve(t, l, conn)
	_ = l.Close()
	_ = conn.Close()
	awaitConnection(t, endpoint)
}

// awaitConnection listens on an endpoint until the first connection, and closes it.
func awaitConnection(t *testing.T, endpoint Endpoint) {
	l, err := listenUnix(endpoint)
	if err != nil {
		t.Error(err)
		return
	}

	conn, err := l.Accept()
	closeErr := l.Close()
	if closeErr != nil {
		t.Error(closeErr)
	}

	if err != nil {
		t.Error(err)
		return
	}

	_ = conn.Close()
}

// listenUnix listens on the Unix socket of an endpoint.
func listenUnix(endpoint Endpoint) (net.Listener, error) {
	return net.Listen("unix", strings.TrimPrefix(endpoint.Address, unixScheme))
}

// checkRankZeroEnded checks that an error of Connect reports that rank 0 ended and did not leave.
func checkRankZeroEnded(t *testing.T, err error) {
	t.Helper()
	var absent *AbsentError
	var ended *EndedError
	hasErrors := errors.As(err, &absent) && errors.As(err, &ended)
	if !hasErrors || ended.Rank != 0 || ended.HasLeft {
		t.Errorf("Connect = %v, want an AbsentError about the end of rank 0", err)
	}
}
