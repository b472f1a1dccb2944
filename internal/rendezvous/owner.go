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

// checkAddressOwner finds out which user's process uses the address of a store that this user,
// uid, wants to serve. It returns an error if it is another user's, because waiting would not
// help. Otherwise, it returns advice for an error message.
func checkAddressOwner(
	ctx context.Context, endpoint Endpoint, uid uint32,
) (advice string, err error) {
	network, addr, err := splitAddress(endpoint.Address)
	if err != nil {
		return "", err
	}
	var owner uint32
	var isKnown bool
	if network == "unix" {
		owner, isKnown = ownerOfSocket(ctx, addr, uid)
	} else {
		owner, isKnown = ownerOfPort(addr)
	}
	switch {
	case isKnown && owner != uid:
		return "", fmt.Errorf("another user's process uses the address of this job's store: %w; give "+
			"the job another MASTER_PORT or run id, or start it by symmem launch, whose store "+
			"has a random address", &PeerError{Addr: endpoint.Address, UID: owner, Want: uid})
	case network == "unix":
		return "another job of this user has the same MASTER_PORT or run id and has not ended", nil
	case isKnown:
		return fmt.Sprintf("if PyTorch serves its own store there, set %s=%s on all ranks to join it",
			EnvStore, endpoint.Address), nil
	}
	return "this process cannot find out which process uses the address", nil
}

// ownerOfSocket returns the user whose process listens on a Unix socket. It reports false if it
// cannot connect to the socket. uid is this user.
func ownerOfSocket(ctx context.Context, addr string, uid uint32) (owner uint32, isKnown bool) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", addr)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	var peerErr *PeerError
	switch err := checkPeer(conn, addr, uid); {
	case errors.As(err, &peerErr):
		return peerErr.UID, true
	case err == nil:
		return uid, true
	}
	return 0, false
}

// ownerOfPort returns the user whose process listens on the port of addr on this machine, and
// whether there is one.
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

// listenerUID returns the user whose process listens on a port, and whether there is one. table
// has the format of /proc/net/tcp.
func listenerUID(table string, port uint64) (uid uint32, isKnown bool) {
	const localAddress, state, owner = 1, 3, 7 // indices of fields
	const listenState = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) <= owner || fields[state] != listenState ||
			!strings.HasSuffix(fields[localAddress], suffix) {
			continue
		}
		if uid, err := strconv.ParseUint(fields[owner], 10, 32); err == nil {
			return uint32(uid), true
		}
	}
	return 0, false
}
