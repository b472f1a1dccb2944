package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
)

// TestEndOfRankZeroBeforeWatchIsReported ends the store of rank 0 while rank 1 connects: rank 1
// has a connection to the store, but does not watch for the ends of other ranks yet. Connect of
// rank 1 must report the end of rank 0.
func TestEndOfRankZeroBeforeWatchIsReported(t *testing.T) {
	// serve does the part of rank 0 on the first connection, until rank 0 ends.
	for name, serve := range map[string]func(l net.Listener, conn net.Conn){
		"before the handshake": func(net.Listener, net.Conn) {},
		"after the handshake": func(l net.Listener, conn net.Conn) {
			// The handshake is VALIDATE and PING. The answer is the nonce of the PING.
			d := newDecoder(conn, "rank 1")
			if _, err := d.readRequest(maxAuthBytes); err != nil {
				t.Error(err)
				return
			}

			ping, err := d.readRequest(maxAuthBytes)
			if err != nil {
				t.Error(err)
				return
			}

			_, _ = conn.Write(binary.LittleEndian.AppendUint32(nil, ping.nonce))
			claimConn, err := l.Accept() // on which rank 1 would claim its rank
			if err != nil {
				t.Error(err)
				return
			}

			_ = claimConn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := Endpoint{Address: privateAddress()}
			l, err := net.Listen("unix", strings.TrimPrefix(endpoint.Address, unixScheme))
			if err != nil {
				t.Fatal(err)
			}

			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}

				serve(l, conn)
				_ = l.Close()
				_ = conn.Close()
				awaitConnection(t, endpoint) // Rank 1 has noticed the end and looks for another store.
				cancel()
			}()
			w := worldsOf(2, Route{Kind: RouteServe, Endpoint: endpoint})[1]
			_, _, err = Connect(ctx, w)
			checkRankZeroEnded(t, err)
		})
	}
}

// awaitConnection listens on an endpoint until the first connection, and closes it.
func awaitConnection(t *testing.T, endpoint Endpoint) {
	l, err := net.Listen("unix", strings.TrimPrefix(endpoint.Address, unixScheme))
	if err != nil {
		t.Error(err)
		return
	}

	conn, err := l.Accept()
	if err := l.Close(); err != nil {
		t.Error(err)
	}

	if err != nil {
		t.Error(err)
		return
	}

	_ = conn.Close()
}

// checkRankZeroEnded checks that an error of Connect reports that rank 0 ended and did not leave.
func checkRankZeroEnded(t *testing.T, err error) {
	t.Helper()
	var absent *AbsentError
	var ended *EndedError
	if !errors.As(err, &absent) || !errors.As(err, &ended) || ended.Rank != 0 || ended.HasLeft {
		t.Errorf("Connect = %v, want an AbsentError about the end of rank 0", err)
	}
}
