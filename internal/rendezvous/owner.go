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

// addressInUse finds out which user has taken an address. If it was another user, waiting would not
// help, and addressInUse returns an error. Otherwise it returns advice for an error message.
func addressInUse(ctx context.Context, endpoint Endpoint, uid uint32) (advice string, err error) {
	network, addr, err := splitAddress(endpoint.Address)
	if err != nil {
		return "", err
	}
	var owner uint32
	var known bool
	if network == "unix" {
		owner, known = ownerOfSocket(ctx, addr, uid)
	} else {
		owner, known = ownerOfPort(addr)
	}
	switch {
	case known && owner != uid:
		return "", fmt.Errorf("another user has taken the address of this job's store: %w; give the "+
			"job another MASTER_PORT or run id, or start it by symmem launch, whose store "+
			"has a random address", &PeerError{Addr: endpoint.Address, UID: owner, Want: uid})
	case network == "unix":
		return "another job of this user has the same MASTER_PORT or run id, or has not ended", nil
	case known:
		return fmt.Sprintf("if PyTorch serves its own store there, set %s=%s on all ranks to join it",
			EnvStore, endpoint.Address), nil
	}
	return "this process cannot find out which process uses it", nil
}

func ownerOfSocket(ctx context.Context, addr string, uid uint32) (owner uint32, known bool) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", addr)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	var other *PeerError
	switch err := checkPeer(conn, addr, uid); {
	case errors.As(err, &other):
		return other.UID, true
	case err == nil:
		return uid, true
	}
	return 0, false
}

func ownerOfPort(addr string) (owner uint32, known bool) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, false
	}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if owner, known = listenerUID(string(table), number); known {
			return owner, true
		}
	}
	return 0, false
}

// listenerUID returns the user whose process listens on a port, according to table, which has the
// format of /proc/net/tcp.
func listenerUID(table string, port uint64) (uid uint32, found bool) {
	const listening = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[3] != listening || !strings.HasSuffix(fields[1], suffix) {
			continue
		}
		if uid, err := strconv.ParseUint(fields[7], 10, 32); err == nil {
			return uint32(uid), true
		}
	}
	return 0, false
}
