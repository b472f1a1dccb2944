package nccl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/sys/systest"
)

// machinesVariable is an environment variable that makes this package treat each rank as if it ran
// on a separate machine: ranks communicate over TCP, and share memory by fabric handles. On real
// GPUs that needs an IMEX channel (bench/gpu/fabric.sh).
const machinesVariable = "SYMMEM_TEST_MACHINES"

// ofOneMachine reports whether ranks share a machine. Otherwise they compare calls over TCP before
// they launch, so tests in which ranks launch in different orders do not compare calls then.
func ofOneMachine() bool { return os.Getenv(machinesVariable) == "" }

// spreadRanks applies machinesVariable.
func spreadRanks() {
	if !ofOneMachine() {
		hostID = func(rank int) string { return fmt.Sprintf("machine %d", rank) }
	}
}

// betweenMachines matches tests of the direct path that also run between machines.
// bench/gpu/fabric.sh runs more.
var betweenMachines = strings.Join([]string{
	"^TestStreamsTakeTurns$", "^TestPathsMix$", "^TestLargeCallsAreCaptured$",
	"^TestGroupsWorkAtOnce$", "^TestNormsAreCaptured$", "^TestNormsThatDifferFail$",
}, "|")

// differing matches tests of the contract in which ranks launch calls that differ.
const differing = "^TestContract$/^mistakes$/MismatchError_and/^(count|path|type)_of"

func TestDirectPathBetweenMachinesOfAFabric(t *testing.T) {
	needFabric(t)
	for _, tests := range []string{betweenMachines, differing} {
		c := systest.Command(t, 5*time.Minute, os.Args[0], "-test.short", "-test.timeout=4m",
			"-test.v", "-test.run="+tests)
		c.Env = append(os.Environ(), machinesVariable+"=1", "SOFTGPU_FABRIC=1")
		said, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(said), "--- PASS") {
			t.Errorf("%v\n%s", err, said)
		}
	}
}

// needFabric skips a test if the GPUs do not support fabric handles, or CUDA does not permit them
// because the process sees no IMEX channel. It fails the test for any other reason. The software
// GPU supports fabric handles.
func needFabric(t *testing.T) {
	t.Helper()
	if soft(t) {
		return
	}
	d := newTestGroup(t, 1, time.Minute).opened[0].device
	why := d.gpu.NoFabric
	if why == "" {
		return
	}
	channels, bad := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*")
	refused := strings.Contains(why, "IMEX channel") && len(channels) == 0 && bad == nil
	if !refused && !strings.Contains(why, "does not support them") {
		t.Fatalf("no fabric handles, with IMEX channels %q: %v (%v)", channels, why, bad)
	}
	t.Skip(fmt.Errorf("fabric handles: %s: %w", why, driver.ErrUnsupported))
}

// spread runs the test in a process with machinesVariable, and reports whether this is that
// process.
func spread(t *testing.T) bool {
	t.Helper()
	if !ofOneMachine() {
		return true
	}
	needFabric(t)
	return within(t, machinesVariable+"=1", "SOFTGPU_FABRIC=1")
}

func TestTimeoutNamesAMissingRankOfAnotherMachine(t *testing.T) {
	if !spread(t) {
		return
	}
	w := newTestGroup(t, 2, time.Second)
	group := driver.GroupConfig{ID: "alone", Ranks: []int{0, 1}}
	_, err := w.opened[0].device.Connect(t.Context(), group)
	late := (*driver.TimeoutError)(nil)
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{1}) {
		t.Errorf("got %v", err)
	}
}

// TestRecordedCallsBetweenMachinesAreCompared records different calls on two ranks. Kernels compare
// calls when a capture is replayed, but a call without kernels is compared when it is recorded.
func TestRecordedCallsBetweenMachinesAreCompared(t *testing.T) {
	if !spread(t) {
		return
	}
	w := newGroup(t, 2, 10*time.Second)
	w.must(func(m *testRank) error {
		m.group.SetCheck(true)
		all, err := m.newOwned(1)
		if err != nil {
			return err
		}
		path := []driver.Path{driver.PathDirect, driver.PathPlain}[m.rank]
		plan, err := prepare(m.group, driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: path, Digest: uint64(m.rank),
		})
		err = errors.Join(err, all[0].capture(func() error {
			recorded := m.group.(driver.Recorder).Record(all[0].stream, plan)
			if differs := (*driver.MismatchError)(nil); !errors.As(recorded, &differs) {
				t.Errorf("rank %d records another call than the other: got %v", m.rank, recorded)
			}
			return nil
		}))
		return errors.Join(err, finish(all...))
	})
}
