package nccl

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/nccl"
	"symmem/internal/ranked"
)

// member describes a rank to the other ranks. Each rank writes its member to the key-value store.
type member struct {
	// Machine identifies the machine as in NCCL: it is NCCL_HOSTID if set, and otherwise the host
	// name and the boot ID.
	Machine string `json:"machine"`
	Host    string `json:"host,omitempty"` // host name for messages
	// BootID is Linux's boot ID, which containers on one physical machine share.
	BootID      string `json:"boot"`
	GPUID       string `json:"gpu"`     // UUID of the GPU
	ProcessID   string `json:"process"` // processID of the rank's process
	Model       string `json:"name"`    // model of the GPU
	NCCLVersion int    `json:"nccl"`    // for example 22703 for NCCL 2.27.3
	// NoFabricReason explains why other machines cannot map the rank's memory, or is "".
	NoFabricReason string `json:"no_fabric,omitempty"`
	// NoKernelsReason explains why the GPU cannot run the kernels for messages, or is "".
	NoKernelsReason string `json:"no_kernels,omitempty"`
	// OpenError explains why the rank could not open its GPU, or is "".
	OpenError string `json:"failed,omitempty"`
}

// processID identifies this process. It is random, because processes in other containers and on
// other machines can have the same PID.
var processID = rand.Text()

func memberKey(rank int) string { return fmt.Sprintf("nccl/rank/%d", rank) }

// hostID returns NCCL_HOSTID, or "" if unset. Tests that simulate several machines replace it. Only
// they use the argument, which is the rank.
var hostID = func(int) string { return os.Getenv("NCCL_HOSTID") }

// machineID returns this rank's value of member.Machine.
func machineID(rank int, bootID string) (string, error) {
	if id := hostID(rank); id != "" {
		return id, nil
	}

	hostName, err := os.Hostname()
	return hostName + " " + bootID, err
}

// members reads the descriptions of other ranks from the key-value store and caches them.
type members struct {
	cfg *driver.Config

	mu    ranked.Mutex[membersMu]
	cache map[int]*member // by world rank; guarded by mu
}

// awaitMembers waits for the descriptions of all ranks of a group, and returns them in the order
// of ranks. It returns an error if these ranks cannot form a group.
func (ms *members) awaitMembers(ctx context.Context, ranks []int) ([]*member, error) {
	startTime := time.Now()
	groupMembers := make([]*member, len(ranks))
	group := driver.GroupConfig{Ranks: ranks, Rank: slices.Index(ranks, ms.cfg.Rank)}
	findAbsent := func() []int { return control.FindAbsentRanks(ms.cfg.Store, ranks, memberKey) }
	warning := driver.LateWarning{InCall: "waiting for the ranks of a group", Members: ranks}
	findLate := func() (late []int, notes map[int]string) { return findAbsent(), nil }
	stopWarning := control.WarnLate(ms.cfg.Late, warning, findLate)
	defer stopWarning()
	for i, rank := range ranks {
		m, err := ms.awaitMember(ctx, rank)
		if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			waited := time.Since(startTime)
			absent := findAbsent()
			var awaited []int // no ranks besides the absent ones
			return nil, control.AbsentError(warning.InCall, group, waited, absent, awaited, err)
		}

		if err != nil {
			return nil, err
		}

		groupMembers[i] = m
	}

	if err := checkCompatible(ranks, groupMembers); err != nil {
		return nil, err
	}

	return groupMembers, nil
}

// awaitMember waits for the description of one rank. It returns an error if that rank could not
// open its GPU.
func (ms *members) awaitMember(ctx context.Context, rank int) (*member, error) {
	ms.mu.Lock()
	cached := ms.cache[rank]
	ms.mu.Unlock()
	if cached != nil {
		return cached, nil
	}

	value, err := ms.cfg.Store.Get(ctx, memberKey(rank))
	if err != nil {
		return nil, err
	}

	m := &member{}
	if err := json.Unmarshal(value, m); err != nil {
		return nil, fmt.Errorf("decoding the description of rank %d: %w", rank, err)
	}

	if m.OpenError != "" {
		return nil, fmt.Errorf("rank %d could not open its GPU: %s", rank, control.Printable(m.OpenError))
	}

	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.cache == nil {
		ms.cache = map[int]*member{}
	}

	ms.cache[rank] = m
	return m, nil
}

// checkCompatible returns an error for ranks with different versions of NCCL, and for ranks with
// the same GPU if NCCL does not permit that. With such ranks, NCCL would hang or return an unclear
// error.
func checkCompatible(ranks []int, groupMembers []*member) error {
	firstUsers := map[string]int{} // for each GPU, the first rank that uses it
	first := groupMembers[0]
	for i, m := range groupMembers {
		if m.NCCLVersion != first.NCCLVersion {
			return fmt.Errorf("rank %d has NCCL %s, but rank %d has %s: all ranks need the same "+
				"version; --nccl or SYMMEM_NCCL selects a library", ranks[0],
				nccl.VersionText(first.NCCLVersion), ranks[i], nccl.VersionText(m.NCCLVersion))
		}

		gpuKey := m.Machine + " " + m.GPUID
		firstRank, isUsed := firstUsers[gpuKey]
		if !isUsed {
			firstUsers[gpuKey] = ranks[i]
			continue
		}

		if err := checkSharing(m.NCCLVersion); err != nil {
			return fmt.Errorf("ranks %d and %d use the same GPU, %s %s: %w", firstRank, ranks[i],
				m.Model, m.GPUID, err)
		}
	}

	return nil
}

const (
	// sharingVariable is an environment variable of NCCL. The value 1 lets ranks share a GPU.
	sharingVariable = "NCCL_MULTI_RANK_GPU_ENABLE"
	// sharingVersion is the first NCCL version in which ranks can share a GPU, 2.30.0.
	sharingVersion = 23000
)

func isSharingEnabled() bool { return os.Getenv(sharingVariable) == "1" }

// checkSharing returns an error unless NCCL lets ranks share a GPU. The error is the end of a text
// such as "ranks 0 and 1 use the same GPU: not supported by NCCL 2.29.2".
func checkSharing(version int) error {
	switch {
	case version < sharingVersion:
		return fmt.Errorf("%w by NCCL %s (sharing needs 2.30): give each rank its own local rank, or "+
			"its own CUDA_VISIBLE_DEVICES", driver.ErrUnsupported, nccl.VersionText(version))
	case !isSharingEnabled():
		return fmt.Errorf("%w without %s=1: give each rank its own local rank, or its own "+
			"CUDA_VISIBLE_DEVICES", driver.ErrUnsupported, sharingVariable)
	}

	return nil
}

// countSharers returns how many ranks of the group use thisMember's GPU in thisMember's process,
// including thisMember. Their kernels share the multiprocessors of the GPU.
//
// It ignores ranks in other processes. Their kernels run at other times or, with CUDA's MPS, on
// other multiprocessors.
func countSharers(groupMembers []*member, thisMember *member) int {
	count := 0
	for _, m := range groupMembers {
		if m.ProcessID == thisMember.ProcessID && m.GPUID == thisMember.GPUID {
			count++
		}
	}

	return count
}

func countMachines(groupMembers []*member) int {
	machines := map[string]bool{}
	for _, m := range groupMembers {
		machines[m.Machine] = true
	}

	return len(machines)
}

// hostNames returns the ranks' host names, or nil if all ranks share one machine.
func hostNames(groupMembers []*member) []string {
	if countMachines(groupMembers) == 1 {
		return nil
	}

	names := make([]string, len(groupMembers))
	for i, m := range groupMembers {
		names[i] = control.MachineName(m.Host)
	}

	return names
}

// noMessagesError returns the error of a Send or Recv in a group that has no messages.
func noMessagesError(group *driver.GroupConfig, groupMembers []*member) error {
	if reason := noKernelsReason(group, groupMembers); reason != "" {
		return fmt.Errorf("messages: %s: %w", reason, driver.ErrUnsupported)
	}

	return fmt.Errorf("messages between ranks on several machines: %w", driver.ErrUnsupported)
}

// noKernelsReason returns the first NoKernelsReason of the members that is not empty, with the
// rank. If there is none, it returns "".
func noKernelsReason(group *driver.GroupConfig, groupMembers []*member) string {
	for i, m := range groupMembers {
		if m.NoKernelsReason != "" {
			return fmt.Sprintf("rank %d of the world: %s", group.Ranks[i],
				control.Printable(m.NoKernelsReason))
		}
	}

	return ""
}

// noFabricReason explains why ranks on different machines or in different containers cannot map
// each other's memory, or returns "". Mapping such memory needs CUDA's fabric handles. The result
// is the same on all ranks.
func noFabricReason(group *driver.GroupConfig, groupMembers []*member) string {
	placement := "in several containers"
	if machineCount := countMachines(groupMembers); machineCount > 1 {
		placement = fmt.Sprintf("on %d machines", machineCount)
	}

	for i, m := range groupMembers {
		if m.NoFabricReason != "" {
			return fmt.Sprintf("the ranks are %s, and rank %d has no fabric handles: %s", placement,
				group.Ranks[i], control.Printable(m.NoFabricReason))
		}
	}

	return ""
}
