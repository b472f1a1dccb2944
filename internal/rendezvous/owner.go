package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// checkAddressOwner returns an error if the address of this job's store is in use by a process of
// another user. Otherwise, it returns advice for a warning. A process of the same user may be rank
// 0 of an earlier run that will end soon.
func checkAddressOwner(
	ctx context.Context, endpoint Endpoint, ownUID uint32,
) (advice string, err error) {
	network, addr, err := splitAddress(endpoint.Address)
	if err != nil {
		return "", err
	}

	var owner uint32
	var isKnown bool
	isUnix := network == "unix"
	if isUnix {
		owner, isKnown = ownerOfSocket(ctx, addr, ownUID)
	} else {
		owner, isKnown = ownerOfPort(addr)
	}

	switch {
	case !isKnown:
		return "this process cannot find out which process uses the address", nil
	case owner != ownUID:
		ownerErr := &PeerError{Addr: endpoint.Address, UID: owner, Want: ownUID}
		return "", fmt.Errorf("another user's process uses the address of this job's store: %w; give "+
			"the job another MASTER_PORT or run id, or start it by symmem launch, whose store "+
			"has a random address", ownerErr)
	case isUnix:
		return "another job of this user has the same MASTER_PORT or run id and has not ended", nil
	}

	return fmt.Sprintf("if PyTorch serves its own store there, set %s=%s on all ranks to join it",
		EnvStore, endpoint.Address), nil
}

// ownerOfSocket returns the user whose process listens on a Unix socket.
func ownerOfSocket(ctx context.Context, addr string, ownUID uint32) (owner uint32, isKnown bool) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", addr)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	err = checkPeer(conn, addr, ownUID)
	if err == nil {
		return ownUID, true
	}

	var peerErr *PeerError
	if errors.As(err, &peerErr) {
		return peerErr.UID, true
	}

	return 0, false // The kernel did not return the peer's user.
}

// ownerOfPort returns the user whose process listens on the port of addr on this machine, if any.
func ownerOfPort(addr string) (owner uint32, isKnown bool) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, false
	}

	portNumber, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, false
	}

	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err != nil {
			continue
		}

		owner, isKnown = listenerUID(string(table), portNumber)
		if isKnown {
			return owner, true
		}
	}

	return 0, false
}

// listenerUID returns the user whose process listens on a port, if any. table has the format of
// /proc/net/tcp, in which each socket has a line such as
//
//	0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 ...
func listenerUID(table string, port uint64) (uid uint32, isKnown bool) {
	const (
		addressField = 1 // local address and port in hexadecimal
		stateField   = 3
		ownerField   = 7    // user ID in decimal
		listenState  = "0A" // the kernel's TCP_LISTEN
	)
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) <= ownerField {
			continue
		}

		hasPort := strings.HasSuffix(fields[addressField], suffix)
		isListening := fields[stateField] == listenState
		if !hasPort || !isListening {
			continue
		}

		owner, err := strconv.ParseUint(fields[ownerField], 10, 32)
		if err == nil {
			return uint32(owner), true
		}
	}

	return 0, false
}
