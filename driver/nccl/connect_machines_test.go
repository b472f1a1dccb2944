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

// machinesVariable gives each rank of the tests a machine of its own, as far as this package knows:
// ranks hear of each other over TCP, and reach each other's memory by fabric handles. On GPUs that
// takes an IMEX channel (bench/gpu/fabric.sh).
const machinesVariable = "SYMMEM_TEST_MACHINES"

// ofOneMachine reports whether ranks share a machine. Those that do not compare over TCP before
// they launch, so tests in which ranks launch in orders of their own go without the check then.
func ofOneMachine() bool { return os.Getenv(machinesVariable) == "" }

// spreadRanks does what machinesVariable says.
func spreadRanks() {
	if !ofOneMachine() {
		hostID = func(rank int) string { return fmt.Sprintf("machine %d", rank) }
	}
}

// betweenMachines are tests of the direct path that hold there, too. bench/gpu/fabric.sh has more.
var betweenMachines = strings.Join([]string{
	"^TestStreamsTakeTurns$", "^TestPathsMix$", "^TestLargeCallsAreCaptured$",
	"^TestGroupsWorkAtOnce$", "^TestNormsAreCaptured$", "^TestNormsThatDifferFail$",
}, "|")

// differing are those of the contract in which ranks launch calls that differ.
const differing = "^TestContract$/^mistakes$/MismatchError_and/^(count|path|type)_of"

func TestKernelsReachOtherMachinesOfAFabric(t *testing.T) {
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

// needFabric skips a test on GPUs that do not know fabric handles, and where CUDA does not permit
// them to a process that sees no IMEX channel; any other refusal is a failure. The software GPU
// gives them to whom asks.
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
	if !refused && !strings.Contains(why, "does not know them") {
		t.Fatalf("no fabric handles, with channels %q: %v (%v)", channels, why, bad)
	}
	t.Skip(fmt.Errorf("fabric handles: %s: %w", why, driver.ErrUnsupported))
}

// spread runs the rest of a test where each rank has a machine of its own, and reports whether this
// is there.
func spread(t *testing.T) bool {
	t.Helper()
	if !ofOneMachine() {
		return true
	}
	needFabric(t)
	return within(t, machinesVariable+"=1", "SOFTGPU_FABRIC=1")
}

func TestARankOfAnotherMachineThatDoesNotJoinIsNamed(t *testing.T) {
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

// TestRecordedCallsBetweenMachinesAreCompared: kernels compare when the capture is replayed, but a
// rank whose call has none compares when it records.
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
