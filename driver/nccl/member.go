package nccl

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/nccl"
	"symmem/internal/ranked"
)

// member describes a rank to the others, through the store.
type member struct {
	// Machine distinguishes machines as NCCL does: the host's name and the number of its boot, or
	// NCCL_HOSTID, with which ranks of one machine pass for ranks of several.
	Machine string `json:"machine"`
	// Boot is the number of this boot of the kernel: the same in all containers of one box.
	Boot string `json:"boot"`
	// GPU is the unique number of the rank's GPU.
	GPU string `json:"gpu"`
	// Process is a random name of the rank's process.
	Process string `json:"process"`
	// Name is the model of the GPU.
	Name string `json:"name"`
	// NCCL is the version code of its NCCL.
	NCCL int `json:"nccl"`
	// NoFabric says why its memory has no fabric handles; empty if it has.
	NoFabric string `json:"no_fabric,omitempty"`
	// NoKernels says why its GPU cannot run the kernels that receive messages; empty if it can.
	NoKernels string `json:"no_kernels,omitempty"`
	// Failed says why the rank could not open its GPU; all else is empty then.
	Failed string `json:"failed,omitempty"`
}

// process is the name of this process.
var process = rand.Text()

func memberKey(rank int) string { return fmt.Sprintf("nccl/rank/%d", rank) }

// hostID is NCCL's variable. Tests give ranks of one process values of their own.
var hostID = func(int) string { return os.Getenv("NCCL_HOSTID") }

// machineOf names the machine of a rank of this process.
func machineOf(rank int, boot string) (string, error) {
	if id := hostID(rank); id != "" {
		return id, nil
	}
	name, err := os.Hostname()
	return name + " " + boot, err
}

// members are the ranks of the world as far as they are known.
type members struct {
	cfg *driver.Config

	mu    ranked.Mutex[membersMu]
	known map[int]*member // by world rank; guarded by mu
}

// awaitMembers asks for the other ranks of a group, and refuses groups that cannot work.
func (d *members) awaitMembers(ctx context.Context, ranks []int) ([]*member, error) {
	all, begin := make([]*member, len(ranks)), time.Now()
	absent := func() []int { return control.Absent(d.cfg.Store, ranks, memberKey) }
	warning := driver.LateWarning{Doing: "meeting the ranks of a group", Members: ranks}
	defer control.WarnLate(d.cfg.Late, warning, func() ([]int, map[int]string) {
		return absent(), nil
	})()
	for i, rank := range ranks {
		m, err := d.of(ctx, rank)
		if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return nil, control.AbsentError(warning.Doing, ranks, time.Since(begin), absent(),
				[]int{rank}, err)
		}
		if err != nil {
			return nil, err
		}
		all[i] = m
	}
	return all, compatible(ranks, all)
}

func (d *members) of(ctx context.Context, rank int) (*member, error) {
	d.mu.Lock()
	known := d.known[rank]
	d.mu.Unlock()
	if known != nil {
		return known, nil
	}
	value, err := d.cfg.Store.Get(ctx, memberKey(rank))
	if err != nil {
		return nil, err
	}
	m := &member{}
	if err := json.Unmarshal(value, m); err != nil {
		return nil, fmt.Errorf("reading what rank %d says of itself: %w", rank, err)
	}
	if m.Failed != "" {
		return nil, fmt.Errorf("rank %d could not open its GPU: %s", rank, control.Printable(m.Failed))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[int]*member{}
	}
	d.known[rank] = m
	return m, nil
}

// compatible refuses what NCCL would answer with an error that names no rank, or a hang: different
// versions, and two ranks on one GPU.
func compatible(ranks []int, all []*member) error {
	users := map[string]int{}
	for i, m := range all {
		if m.NCCL != all[0].NCCL {
			return fmt.Errorf("rank %d has NCCL %s, rank %d has %s: all ranks need the same; "+
				"--nccl or SYMMEM_NCCL names one", ranks[0], nccl.VersionText(all[0].NCCL), ranks[i],
				nccl.VersionText(m.NCCL))
		}
		at := m.Machine + " " + m.GPU
		if first, used := users[at]; used {
			if err := canShare(m.NCCL); err != nil {
				return fmt.Errorf("ranks %d and %d use the same GPU, %s %s: %w", first, ranks[i], m.Name,
					m.GPU, err)
			}
		}
		users[at] = ranks[i]
	}
	return nil
}

// sharingVariable lets ranks share a GPU if it is 1, from NCCL 2.30 on; NCCL reads it, too.
const (
	sharingVariable = "NCCL_MULTI_RANK_GPU_ENABLE"
	sharingVersion  = 23000
)

// sharing reports whether ranks may share a GPU.
func sharing() bool { return os.Getenv(sharingVariable) == "1" }

// canShare says why ranks with such an NCCL cannot share a GPU.
func canShare(version int) error {
	switch {
	case version < sharingVersion:
		return fmt.Errorf("%w by NCCL %s (2.30 is the first that lets ranks share one): give each rank "+
			"its own local rank, or its own CUDA_VISIBLE_DEVICES", driver.ErrUnsupported,
			nccl.VersionText(version))
	case !sharing():
		return fmt.Errorf("%w without %s=1: give each rank its own local rank, or its own "+
			"CUDA_VISIBLE_DEVICES", driver.ErrUnsupported, sharingVariable)
	}
	return nil
}

// sharers counts the ranks of a group that a rank's process has on its GPU, itself among them.
// Their kernels wait for each other side by side. Ranks in processes of their own either take
// turns on the GPU or have shares of it, which CUDA then counts as all that there is.
func sharers(all []*member, self *member) int {
	n := 0
	for _, m := range all {
		if m.Process == self.Process && m.GPU == self.GPU {
			n++
		}
	}
	return n
}

// machines counts the machines of a group.
func machines(all []*member) int {
	names := map[string]bool{}
	for _, m := range all {
		names[m.Machine] = true
	}
	return len(names)
}

// withoutMessages says why ranks of a group cannot send messages to each other.
func withoutMessages(group *driver.GroupConfig, all []*member) error {
	if why := withoutKernels(group, all); why != "" {
		return fmt.Errorf("messages: %s: %w", why, driver.ErrUnsupported)
	}
	return fmt.Errorf("messages between ranks of several machines: %w", driver.ErrUnsupported)
}

// withoutKernels says why some rank of a group runs no kernels of our own, or is empty.
func withoutKernels(group *driver.GroupConfig, all []*member) string {
	for i, m := range all {
		if m.NoKernels != "" {
			return fmt.Sprintf("rank %d of the world: %s", group.Ranks[i], control.Printable(m.NoKernels))
		}
	}
	return ""
}

// withoutFabric says why ranks that are apart cannot map each other's memory; it is empty if they
// may be able to. It is the same on all ranks.
func withoutFabric(group *driver.GroupConfig, all []*member) string {
	where := "in several containers"
	if m := machines(all); m > 1 {
		where = fmt.Sprintf("on %d machines", m)
	}
	for i, m := range all {
		if m.NoFabric != "" {
			return fmt.Sprintf("the ranks are %s, and rank %d has no fabric handles: %s", where,
				group.Ranks[i], control.Printable(m.NoFabric))
		}
	}
	return ""
}
