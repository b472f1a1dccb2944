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
// store (a key-value service for all ranks), watch each other's processes and exchange file
// descriptors. A world rank is the number of a rank among all ranks of the program.
type Machine struct {
	cfg             driver.Config
	*handoff.Server               // answers other ranks' requests for files; nil until Open sets it
	token           handoff.Token // proves to a Server that a client is a rank; created by rank 0
	// sharesProcess is set if another rank runs in this process, as in tests. Waits then yield to
	// other goroutines instead of other processes.
	sharesProcess atomic.Bool

	mu        ranked.Mutex[machineMu]
	peers     map[int]*peer // connections by world rank; guarded by mu
	closed    bool          // guarded by mu
	exitCount atomic.Uint32 // processes of peers that have exited
}

// Open returns a Machine that other ranks can reach. It waits until rank 0 has stored the token,
// and publishes this rank's address in the store.
func Open(ctx context.Context, cfg driver.Config) (*Machine, error) {
	m := &Machine{cfg: cfg}
	if err := m.publishAddress(ctx); err != nil {
		err = fmt.Errorf("connecting to the ranks of this machine: %w", err)
		closeErr := m.Close()
		return nil, errors.Join(err, closeErr)
	}

	return m, nil
}

// publishAddress starts the Server, and stores its address and this rank's machineID.
func (m *Machine) publishAddress(ctx context.Context) error {
	if err := m.shareToken(ctx); err != nil {
		return err
	}

	server, err := handoff.Listen(m.token)
	if err != nil {
		return err
	}

	m.Server = server
	id, err := machineID()
	if err != nil {
		return err
	}

	value := m.Address() + " " + id // see dial
	return m.cfg.Store.Set(ctx, rankKey(m.cfg.Rank), []byte(value))
}

// shareToken sets m.token: rank 0 stores a new token, and the other ranks wait for it. If rank 0
// does not store it in time, the error names rank 0 as absent.
func (m *Machine) shareToken(ctx context.Context) error {
	begin := time.Now()
	isCreator := m.cfg.Rank == 0
	err := control.ShareToken(ctx, m.cfg.Store, "shm/token", isCreator, m.token[:])
	hasTimedOut := err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded)
	if !hasTimedOut {
		return err
	}

	world := driver.GroupConfig{Rank: m.cfg.Rank}
	for rank := range m.cfg.Size {
		world.Ranks = append(world.Ranks, rank)
	}

	var absent []int // not known
	awaited := []int{0}
	return control.AbsentError("fetching the world's token", world, time.Since(begin), absent,
		awaited, err)
}

// rankKey returns the key in the store of a world rank's address and machineID.
func rankKey(rank int) string { return fmt.Sprintf("shm/rank/%d", rank) }

// machineID returns the machine's boot ID and the network and PID namespaces of this process,
// separated by spaces. Ranks with different IDs cannot exchange descriptors or watch each other.
func machineID() (string, error) {
	boot, bootErr := sys.BootID()
	network, networkErr := sys.Namespace("net")
	processes, processesErr := sys.Namespace("pid")
	if err := errors.Join(bootErr, networkErr, processesErr); err != nil {
		return "", err
	}

	return boot + " " + network + " " + processes, nil
}

// explainNotShared returns an error that explains how the machineID of a peer differs.
func explainNotShared(ownID, peerID string) error {
	ownParts, peerParts := strings.Fields(ownID), strings.Fields(peerID)
	const boot, network, partCount = 0, 1, 3 // see machineID
	areComplete := len(ownParts) == partCount && len(peerParts) == partCount
	isSameMachine := areComplete && ownParts[boot] == peerParts[boot]
	switch {
	case !isSameMachine:
		return errors.New("it is on another machine: ranks share memory of one machine only")
	case ownParts[network] != peerParts[network]:
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
		closeErr := p.close() // a concurrent call has connected, too
		return existing, closeErr
	}

	if m.peers == nil {
		m.peers = map[int]*peer{}
	}

	m.peers[rank] = p
	return p, nil
}

// dial connects to a world rank. It waits until the rank has stored its address.
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

	connection, err := handoff.Dial(ctx, address, m.token)
	if err != nil {
		return nil, toRankLostError(rank, "connecting", err)
	}

	if connection.PID() == os.Getpid() {
		m.sharesProcess.Store(true)
	}

	return newPeer(rank, connection, &m.exitCount), nil
}

// Close closes all connections and the Server. It can be called more than once.
func (m *Machine) Close() error {
	var errs []error
	m.mu.Lock()
	for _, p := range m.peers {
		err := p.close()
		errs = append(errs, err)
	}

	m.peers = nil
	wasOpen := !m.closed
	m.closed = true
	m.mu.Unlock()
	if m.Server != nil && wasOpen { // Open calls Close if there is no Server yet
		err := m.Server.Close()
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// withDefaultTimeout adds the deadline of Config.Timeout unless ctx has one.
func (m *Machine) withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return control.WithDefaultTimeout(ctx, m.cfg.Timeout)
}

// Fetch returns a file that a world rank has exported. The caller owns the file.
func (m *Machine) Fetch(ctx context.Context, rank int, key handoff.Key) (*os.File, error) {
	p, err := m.ensurePeer(ctx, rank)
	if err != nil {
		return nil, err
	}

	return p.fetchFile(ctx, key)
}

// yield lets another rank run on this processor, if one is ready.
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
