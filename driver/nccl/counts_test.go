package nccl

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/ras"
)

func TestNCCLIsQueried(t *testing.T) { testQueryOfNCCL(t, "22902", true) }

// TestOldNCCLIsNotQueried uses a version that a query can crash.
func TestOldNCCLIsNotQueried(t *testing.T) { testQueryOfNCCL(t, "22809", false) }

// testQueryOfNCCL makes one rank skip an NCCL collective, and checks whether symmem connects to the
// address in NCCL_RAS_ADDR.
func testQueryOfNCCL(t *testing.T, version string, isSafe bool) {
	t.Helper()
	requireSoftGPU(t, "has a configurable version of NCCL")
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	if inChildProcess(t, "SOFTGPU_NCCL="+version, ras.Variable+"="+address) {
		skipCollective(newGroup(t, 2, time.Second), func(*testRank, error) error { return nil })
		return
	}
	if isQueried := hasPendingConnection(t, listener); isQueried != isSafe {
		t.Errorf("NCCL was queried: %t, want %t", isQueried, isSafe)
	}
}

// hasPendingConnection reports whether a listener has a connection that has not been accepted.
func hasPendingConnection(t *testing.T, listener net.Listener) bool {
	t.Helper()
	last, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	first, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	return first.RemoteAddr().String() != last.LocalAddr().String()
}

// TestTimeoutHasCountsOfNCCL makes one rank skip an NCCL collective, and checks that the other
// rank's TimeoutError contains NCCL's operation counts.
func TestTimeoutHasCountsOfNCCL(t *testing.T) {
	if usesSoftGPU(t) {
		t.Skip("not supported here: the NCCL of the software GPU has no RAS")
	}
	w := newGroup(t, 2, 6*time.Second)
	if w.ranks[0].group.(*communicator).faults.rasID == "" {
		t.Skip("not supported here: this version of NCCL can crash if it is queried")
	}
	skipCollective(w, func(m *testRank, err error) error {
		if m.rank == 1 {
			return err
		}
		var timeoutErr *driver.TimeoutError
		if !errors.As(err, &timeoutErr) {
			return failuref("Synchronize = %v, want a TimeoutError", err)
		}
		t.Log(timeoutErr)
		if !strings.Contains(timeoutErr.Counts, "AllReduce: ") ||
			!strings.Contains(timeoutErr.Error(), timeoutErr.Counts) {
			return failuref("got counts %q in %v, want counts of AllReduce", timeoutErr.Counts, timeoutErr)
		}
		return nil
	})
}

// skipCollective launches one NCCL collective on rank 1 and two on rank 0, and passes each rank's
// error of Synchronize to check.
func skipCollective(w *testGroup, check func(m *testRank, err error) error) {
	w.t.Helper()
	w.withSum(1024, func(m *testRank, p *repeatedSum) error {
		m.group.SetCheck(false) // because otherwise rank 0's second call would not reach NCCL
		for range 2 - m.rank {
			if err := p.launch(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}
		return check(m, m.stream.Synchronize(w.t.Context()))
	})
}
