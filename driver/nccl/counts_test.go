package nccl

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/nccl"
	"symmem/internal/ras"
)

// After a timeout, symmem asks NCCL's monitoring service, RAS, how many collectives each rank has
// launched. This query can crash old versions of NCCL.

func TestNCCLIsQueried(t *testing.T) {
	const version = "22902" // 2.29.2
	const wantQuery = true
	checkQueryOfNCCL(t, version, wantQuery)
}

func TestOldNCCLIsNotQueried(t *testing.T) {
	const version = "22809" // 2.28.9
	const wantQuery = false
	checkQueryOfNCCL(t, version, wantQuery)
}

// checkQueryOfNCCL listens at the address of RAS while a collective times out in a child process.
func checkQueryOfNCCL(t *testing.T, version string, wantQuery bool) {
	t.Helper()
	requireSoftGPU(t, "has a configurable version of NCCL")
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	if inChildProcess(t, "SOFTGPU_NCCL="+version, ras.AddressVariable+"="+address) {
		ignoreTimeout := func(*testRank, error) error { return nil }
		skipCollective(newGroup(t, 2, time.Second), ignoreTimeout)
		return
	}

	isQueried := hasPendingConnection(t, listener)
	if isQueried != wantQuery {
		t.Errorf("NCCL %s was queried: %t, want %t", version, isQueried, wantQuery)
	}
}

// hasPendingConnection reports whether Accept would return a connection immediately.
func hasPendingConnection(t *testing.T, listener net.Listener) bool {
	t.Helper()
	// This connection is accepted last, and keeps Accept from blocking.
	own, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	first, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	isOwn := first.RemoteAddr().String() == own.LocalAddr().String()
	return !isOwn
}

func TestTimeoutHasCountsOfNCCL(t *testing.T) {
	if usesSoftGPU(t) {
		t.Skip("not supported here: the NCCL of the software GPU has no RAS")
	}

	const timeout = 6 * time.Second // long enough for the query
	group := newGroup(t, 2, timeout)
	device := group.opened[0].device
	version, versionText := device.nccl.Version()
	if nccl.RASOverflow.Affects(version, device.gpu.Major) {
		t.Skip(fmt.Errorf("NCCL %s must not be queried (nccl.RASOverflow): %w", versionText,
			driver.ErrUnsupported))
	}

	skipCollective(group, func(m *testRank, err error) error {
		if m.rank == skippingRank {
			return err
		}

		var timeoutErr *driver.TimeoutError
		if !errors.As(err, &timeoutErr) {
			return failuref("Synchronize = %v, want a TimeoutError", err)
		}

		t.Log(timeoutErr)
		if !strings.Contains(timeoutErr.Counts, "AllReduce: ") {
			return failuref("Counts = %q, want counts of AllReduce", timeoutErr.Counts)
		}

		if !strings.Contains(timeoutErr.Error(), timeoutErr.Counts) {
			return failuref("error = %v, want an error that contains %q", timeoutErr, timeoutErr.Counts)
		}

		return nil
	})
}

const skippingRank = 1 // in skipCollective

// skipCollective launches two NCCL collectives, of which skippingRank launches only the first. The
// other rank times out. check gets each rank's error of Synchronize.
func skipCollective(group *testGroup, check func(m *testRank, err error) error) {
	group.t.Helper()
	group.withSum(smallCount, func(m *testRank, sum *repeatedSum) error {
		m.group.SetCheck(false) // otherwise rank 0's second call would not reach NCCL
		calls := 2
		if m.rank == skippingRank {
			calls = 1
		}

		for range calls {
			if err := sum.launch(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}

		return check(m, m.stream.Synchronize(group.t.Context()))
	})
}
