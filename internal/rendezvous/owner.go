package rendezvous

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"symmem/internal/sys"
)

// PeerError means that the process at the other end of a Unix socket belongs to another user.
type PeerError struct {
	Addr string
	UID  uint32 // of the other process
	Want uint32 // of this process
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("the other end of %s belongs to user %d, not to user %d",
		e.Addr, e.UID, e.Want)
}

// checkPeer returns a PeerError if the process at the other end of a Unix socket does not run as
// the user uid. It does not check other connections.
func checkPeer(conn net.Conn, addr string, uid uint32) error {
	unixConn, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return nil
	}

	peer, err := sys.PeerOf(unixConn)
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}

	if peer.UID != int(uid) {
		return &PeerError{Addr: addr, UID: uint32(peer.UID), Want: uid}
	}

	return nil
}

// checkAddressOwner returns an error if a process of another user uses the address of this job's
// store. Otherwise, it returns advice for a warning. The address may become free soon, for example
// if rank 0 of an earlier run still uses it.
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
		owner, isKnown = ownerOfSocket(ctx, addr)
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
	default:
		return fmt.Sprintf("if PyTorch serves its own store there, set %s=%s on all ranks to join it",
			EnvStore, endpoint.Address), nil
	}
}

// ownerOfSocket returns the user whose process listens on a Unix socket.
func ownerOfSocket(ctx context.Context, addr string) (owner uint32, isKnown bool) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", addr)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	peer, err := sys.PeerOf(conn.(*net.UnixConn))
	if err != nil {
		return 0, false
	}

	return uint32(peer.UID), true
}

// ownerOfPort returns the user whose process listens on the port of addr on this machine.
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

// listenerUID returns the user whose process listens on a port. table has the format of
// /proc/net/tcp, with a line for each socket.
func listenerUID(table string, port uint64) (uid uint32, isKnown bool) {
	const (
		addressField = 1 // such as "0100007F:1F90"
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
