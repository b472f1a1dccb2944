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

// After a timeout, symmem queries NCCL's monitoring service, RAS, for the number of collectives
// that each rank has launched. A query can crash old versions of NCCL.

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

// checkQueryOfNCCL listens in place of RAS while a collective times out in a child process.
func checkQueryOfNCCL(t *testing.T, version string, wantQuery bool) {
	t.Helper()
	requireSoftGPU(t, "has a configurable version of NCCL")
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	if inChildProcess(t, "SOFTGPU_NCCL="+version, ras.Variable+"="+address) {
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
	// Queue a connection behind any pending one, so that Accept never blocks.
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

	w := newGroup(t, 2, 6*time.Second)
	device := w.opened[0].device
	version, versionText := device.nccl.Version()
	if nccl.RASOverflow.Affects(version, device.gpu.Major) {
		t.Skip(fmt.Errorf("NCCL %s must not be queried (nccl.RASOverflow): %w", versionText,
			driver.ErrUnsupported))
	}

	skipCollective(w, func(m *testRank, err error) error {
		const skippingRank = 1 // completes its only collective
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

// skipCollective launches two NCCL collectives on rank 0 and one on rank 1, so that rank 0 times
// out. It passes the error of Synchronize to check.
func skipCollective(w *testGroup, check func(m *testRank, err error) error) {
	w.t.Helper()
	w.withSum(1024, func(m *testRank, p *repeatedSum) error {
		m.group.SetCheck(false)    // otherwise rank 0's second call would not reach NCCL
		callCounts := [2]int{2, 1} // by rank
		for range callCounts[m.rank] {
			if err := p.launch(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}

		return check(m, m.stream.Synchronize(w.t.Context()))
	})
}
