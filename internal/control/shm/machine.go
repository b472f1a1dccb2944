package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/sys"
)

// Machine connects this rank to the other ranks on its machine. They find each other through a
// store, watch each other's processes and exchange file descriptors.
type Machine struct {
	cfg driver.Config
	*handoff.Server
	token handoff.Token // shared by all ranks; created by rank 0
	// sharesProcess is set if another rank runs in this process, as in tests. Waits then yield to
	// other goroutines instead of other processes.
	sharesProcess atomic.Bool

	mu        ranked.Mutex[machineMu]
	peers     map[int]*peer // by world rank; guarded by mu
	closed    bool          // guarded by mu
	exitCount atomic.Uint32 // processes of peers that have exited
}

// Open returns a Machine that other ranks can reach. It waits until rank 0 has stored the token,
// and publishes this rank's address in the store.
func Open(ctx context.Context, cfg driver.Config) (*Machine, error) {
	m := &Machine{cfg: cfg}
	if err := m.publishAddress(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to the ranks of this machine: %w", err), m.Close())
	}
	return m, nil
}

// publishAddress starts the Server, and stores its address and this rank's machineID.
func (m *Machine) publishAddress(ctx context.Context) error {
	if err := m.shareToken(ctx); err != nil {
		return err
	}
	var err error
	if m.Server, err = handoff.Listen(m.token); err != nil {
		return err
	}
	id, err := machineID()
	if err != nil {
		return err
	}
	value := m.Address() + " " + id
	return m.cfg.Store.Set(ctx, rankKey(m.cfg.Rank), []byte(value))
}

func (m *Machine) shareToken(ctx context.Context) error {
	begin := time.Now()
	err := control.ShareToken(ctx, m.cfg.Store, "shm/token", m.cfg.Rank == 0, m.token[:])
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		world := driver.GroupConfig{Rank: m.cfg.Rank}
		for rank := range m.cfg.Size {
			world.Ranks = append(world.Ranks, rank)
		}
		return control.AbsentError("fetching the world's token", world, time.Since(begin), nil,
			[]int{0}, err)
	}
	return err
}

func rankKey(rank int) string { return fmt.Sprintf("shm/rank/%d", rank) }

// machineID returns the machine's boot ID and the network and PID namespaces of this process,
// separated by spaces. Ranks with different IDs cannot exchange descriptors or watch each other.
func machineID() (string, error) {
	boot, err := sys.BootID()
	network, netErr := sys.Namespace("net")
	processes, pidErr := sys.Namespace("pid")
	if err := errors.Join(err, netErr, pidErr); err != nil {
		return "", err
	}
	return boot + " " + network + " " + processes, nil
}

// explainNotShared returns an error that explains how the machineID of a peer differs.
func explainNotShared(ownID, peerID string) error {
	own, peer := strings.Fields(ownID), strings.Fields(peerID)
	switch {
	case len(own) != 3 || len(peer) != 3 || own[0] != peer[0]:
		return errors.New("it is on another machine: ranks share memory of one machine only")
	case own[1] != peer[1]:
		return errors.New("it is in another network namespace of this machine: run all ranks in one " +
			"container, or with the network of the host (hostNetwork: true; docker run --network host)")
	}
	return errors.New("it is in another PID namespace of this machine, such as another container " +
		"of the pod: run all ranks in one container, or let the containers share one " +
		"(shareProcessNamespace: true in the pod; docker run --pid host or --pid container:NAME)")
}

// ensurePeer returns the connection to a world rank, and creates it if there is none.
func (m *Machine) ensurePeer(ctx context.Context, rank int) (*peer, error) {
	m.mu.Lock()
	p := m.peers[rank]
	m.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := m.dial(ctx, rank)
	if err != nil {
		return nil, fmt.Errorf("connecting to rank %d: %w", rank, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if existing := m.peers[rank]; existing != nil {
		return existing, p.close() // a concurrent call has connected, too
	}
	if m.peers == nil {
		m.peers = map[int]*peer{}
	}
	m.peers[rank] = p
	return p, nil
}

func (m *Machine) dial(ctx context.Context, rank int) (*peer, error) {
	value, err := m.cfg.Store.Get(ctx, rankKey(rank))
	if err != nil {
		return nil, err
	}
	address, peerID, _ := strings.Cut(string(value), " ")
	ownID, err := machineID()
	if err != nil {
		return nil, err
	}
	if peerID != ownID {
		return nil, explainNotShared(ownID, peerID)
	}
	h, err := handoff.Dial(ctx, address, m.token)
	if err != nil {
		return nil, toRankLostError(rank, "connecting", err)
	}
	if h.PID() == os.Getpid() {
		m.sharesProcess.Store(true)
	}
	return newPeer(rank, h, &m.exitCount), nil
}

// Close closes all connections and the Server. It can be called more than once.
func (m *Machine) Close() error {
	var errs []error
	m.mu.Lock()
	for _, p := range m.peers {
		errs = append(errs, p.close())
	}
	m.peers = nil
	wasOpen := !m.closed
	m.closed = true
	m.mu.Unlock()
	if m.Server != nil && wasOpen {
		errs = append(errs, m.Server.Close())
	}
	return errors.Join(errs...)
}

func (m *Machine) withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return control.WithDefaultTimeout(ctx, m.cfg.Timeout)
}

// Fetch returns a file that another rank has exported. The caller owns the file.
func (m *Machine) Fetch(ctx context.Context, rank int, key handoff.Key) (*os.File, error) {
	p, err := m.ensurePeer(ctx, rank)
	if err != nil {
		return nil, err
	}
	return p.fetchFile(ctx, key)
}

func (m *Machine) yield() {
	if m.sharesProcess.Load() {
		runtime.Gosched()
		return
	}
	sys.Yield()
}

// checkInterrupt calls Config.Interrupted, if set, and returns its error. It converts a panic to
// an error, because the caller may hold locks.
func (m *Machine) checkInterrupt() (err error) {
	callback := m.cfg.Interrupted
	if callback == nil {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("Options.Interrupted panicked: %v: %w\n\n%s",
				r, driver.ErrInterrupted, debug.Stack())
		}
	}()
	return callback()
}
