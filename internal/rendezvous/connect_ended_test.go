package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
)

// Rank 0, which serves the store, ends while rank 1 is still in Connect. Rank 1 retries until its
// context ends, and then reports the end of rank 0.
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

// serveFunc serves conn, the first connection of rank 1. Rank 0 ends when the function returns.
type serveFunc func(t *testing.T, l net.Listener, conn net.Conn)

// serveHandshake answers the handshake, which consists of VALIDATE and PING. Then it accepts and
// closes a second connection, on which rank 1 would claim its rank.
func serveHandshake(t *testing.T, l net.Listener, conn net.Conn) {
	d := newDecoder(conn, "rank 1")
	if _, err := d.readRequest(maxHandshakeBytes); err != nil { // VALIDATE
		t.Error(err)
		return
	}

	ping, err := d.readRequest(maxHandshakeBytes)
	if err != nil {
		t.Error(err)
		return
	}

	pingAnswer := binary.LittleEndian.AppendUint32(nil, ping.nonce)
	if _, err := conn.Write(pingAnswer); err != nil {
		t.Error(err)
		return
	}

	claimConn, err := l.Accept()
	if err != nil {
		t.Error(err)
		return
	}

	claimConn.Close()
}

// serveUntilEnd calls serve with the first connection of rank 1, and then closes the store. It
// returns when rank 1 tries to connect again.
func serveUntilEnd(t *testing.T, l net.Listener, endpoint Endpoint, serve serveFunc) {
	conn, err := l.Accept()
	if err != nil {
		t.Error(err)
		return
	}

	serve(t, l, conn)
	l.Close()
	conn.Close()
	awaitConnection(t, endpoint)
}

// awaitConnection accepts one connection at an endpoint, and closes it.
func awaitConnection(t *testing.T, endpoint Endpoint) {
	l, err := listenUnix(endpoint)
	if err != nil {
		t.Error(err)
		return
	}

	conn, acceptErr := l.Accept()
	if err := l.Close(); err != nil {
		t.Error(err)
	}

	if acceptErr != nil {
		t.Error(acceptErr)
		return
	}

	conn.Close()
}

func listenUnix(endpoint Endpoint) (net.Listener, error) {
	return net.Listen("unix", strings.TrimPrefix(endpoint.Address, unixScheme))
}

// checkRankZeroEnded checks that the error of Connect says that rank 0 has ended without leaving.
func checkRankZeroEnded(t *testing.T, err error) {
	t.Helper()
	var absent *AbsentError
	var ended *EndedError
	isAbsentAndEnded := errors.As(err, &absent) && errors.As(err, &ended)
	if !isAbsentAndEnded || ended.Rank != 0 || ended.HasLeft {
		t.Errorf("Connect = %v, want an AbsentError about the end of rank 0", err)
	}
}
