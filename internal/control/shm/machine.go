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

// Ranks on one machine share memory in the form of files, which they fetch from each other. Suppose
// that ranks 0 and 1 run on one machine, and that rank 1 fetches a file from rank 0:
//
//   - All ranks of the job use one store of keys and values. Rank 0 stores a random secret, the
//     token, under the key "shm/token". Rank 1 reads it from there.
//   - Each rank starts a Server, which sends the rank's files to processes that know the token.
//   - Each rank stores the address of its Server and its machine ID. Rank 0 stores both under the
//     key "shm/rank/0". Two ranks can exchange files if their machine IDs are equal.
//   - Rank 1 reads the key "shm/rank/0", compares the machine IDs, and connects to the address. It
//     keeps this connection, called a peer, for later requests.
//   - Rank 1 requests the file through the peer. The peer also notices when rank 0's process exits.

// Machine is this rank's access to the other ranks on its machine.
type Machine struct {
	cfg             driver.Config
	token           handoff.Token
	*handoff.Server // of this rank; callers export files with its methods

	sharesProcess atomic.Bool   // whether a peer's rank is in this process, as in tests
	exitCount     atomic.Uint32 // number of peers whose processes have exited

	mu       ranked.Mutex[machineMu] // machineMu is its place in the lock order
	peers    map[int]*peer           // by rank; guarded by mu
	isClosed bool                    // whether Close has been called; guarded by mu
}

// Open returns a Machine from which other ranks can fetch files.
//
// It waits until rank 0 has stored the token. If the deadline of ctx passes first, the error is a
// driver.AbsentError about rank 0, unless the wait was too short to blame it.
func Open(ctx context.Context, cfg driver.Config) (*Machine, error) {
	m := &Machine{cfg: cfg}
	if err := m.start(ctx); err != nil {
		err = fmt.Errorf("connecting to the ranks of this machine: %w", err)
		closeErr := m.Close()
		return nil, errors.Join(err, closeErr)
	}

	return m, nil
}

// start gets the token, starts the Server and stores its address.
func (m *Machine) start(ctx context.Context) error {
	if err := m.shareToken(ctx); err != nil {
		return err
	}

	server, err := handoff.Listen(m.token)
	if err != nil {
		return err
	}

	m.Server = server
	return m.storeAddress(ctx)
}

// tokenCreator is the rank that creates the token.
const tokenCreator = 0

// shareToken sets m.token. Rank 0 creates and stores the token, and the other ranks wait for it.
func (m *Machine) shareToken(ctx context.Context) error {
	begin := time.Now()
	isCreator := m.cfg.Rank == tokenCreator
	err := control.ShareToken(ctx, m.cfg.Store, "shm/token", isCreator, m.token[:])
	hasTimedOut := err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded)
	if hasTimedOut {
		return m.missingTokenError(time.Since(begin), err)
	}

	return err
}

// missingTokenError returns an error about rank 0, which did not store the token in time. err is
// the error of the wait for the token.
func (m *Machine) missingTokenError(waited time.Duration, err error) error {
	world := driver.GroupConfig{Rank: m.cfg.Rank} // the group of all ranks
	for rank := range m.cfg.Size {
		world.Ranks = append(world.Ranks, rank)
	}

	absent := []int{tokenCreator}
	var awaited []int // not used, because absent is not empty
	return control.AbsentError("fetching the world's token", world, waited, absent, awaited, err)
}

// rankKey returns the key under which a rank stores its address and machine ID.
func rankKey(rank int) string { return fmt.Sprintf("shm/rank/%d", rank) }

// machineID returns the machine ID of this process, such as "6d0f2c net:[5] pid:[7]".
//
// The first part is the boot ID, a random number that the machine chooses when it boots. The other
// parts identify the network namespace and the PID namespace of this process. Containers usually
// have different ones. A process can connect only to Servers in its network namespace, and can
// watch only processes in its PID namespace.
func machineID() (string, error) {
	boot, bootErr := sys.BootID()
	network, networkErr := sys.Namespace("net")
	processes, processesErr := sys.Namespace("pid")
	if err := errors.Join(bootErr, networkErr, processesErr); err != nil {
		return "", err
	}

	return boot + " " + network + " " + processes, nil
}

// storeAddress stores the address of the Server and the machine ID, separated by a space.
func (m *Machine) storeAddress(ctx context.Context) error {
	id, err := machineID()
	if err != nil {
		return err
	}

	value := m.Server.Address() + " " + id
	return m.cfg.Store.Set(ctx, rankKey(m.cfg.Rank), []byte(value))
}

// Fetch returns a file that another rank has exported under a key. The caller must close it. The
// error is a RankLostError if the other process has exited.
func (m *Machine) Fetch(ctx context.Context, rank int, key handoff.Key) (*os.File, error) {
	p, err := m.ensurePeer(ctx, rank)
	if err != nil {
		return nil, err
	}

	return p.fetchFile(ctx, key)
}

// ensurePeer returns the peer of a rank. It connects to the rank if there is no peer yet.
func (m *Machine) ensurePeer(ctx context.Context, rank int) (*peer, error) {
	m.mu.Lock()
	existing := m.peers[rank]
	m.mu.Unlock()
	if existing != nil {
		return existing, nil
	}

	p, err := m.connect(ctx, rank)
	if err != nil {
		return nil, fmt.Errorf("connecting to rank %d: %w", rank, err)
	}

	return m.addPeer(p)
}

// addPeer adds a new peer and returns it. If a concurrent call has added a peer of the same rank,
// addPeer closes the new one and returns the other.
func (m *Machine) addPeer(p *peer) (*peer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if existing := m.peers[p.rank]; existing != nil {
		closeErr := p.close()
		return existing, closeErr
	}

	if m.peers == nil {
		m.peers = map[int]*peer{}
	}

	m.peers[p.rank] = p
	return p, nil
}

// connect returns a new peer of a rank. It waits until the rank has stored its address.
func (m *Machine) connect(ctx context.Context, rank int) (*peer, error) {
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
		return nil, differentIDError(ownID, peerID)
	}

	connection, err := handoff.Dial(ctx, address, m.token)
	if err != nil {
		return nil, toRankLostError(rank, "connecting", err) // if the process has exited
	}

	isInThisProcess := connection.PID() == os.Getpid()
	if isInThisProcess {
		m.sharesProcess.Store(true)
	}

	return newPeer(rank, connection, &m.exitCount), nil
}

// differentIDError returns an error that explains to users how two machine IDs differ.
func differentIDError(ownID, peerID string) error {
	ownBoot, ownNetwork := bootAndNetwork(ownID)
	peerBoot, peerNetwork := bootAndNetwork(peerID)
	isSameMachine := ownBoot != "" && ownBoot == peerBoot
	isSameNetwork := ownNetwork == peerNetwork
	switch {
	case !isSameMachine:
		return errors.New("it is on another machine: ranks share memory of one machine only")
	case !isSameNetwork:
		return errors.New("it is in another network namespace of this machine: run all ranks in one " +
			"container, or with the network of the host (hostNetwork: true; docker run --network host)")
	}

	return errors.New("it is in another PID namespace of this machine, such as another container " +
		"of the pod: run all ranks in one container, or let the containers share one " +
		"(shareProcessNamespace: true in the pod; docker run --pid host or --pid container:NAME)")
}

// bootAndNetwork returns the first two parts of a machine ID. They are empty if the ID is invalid.
func bootAndNetwork(id string) (boot, network string) {
	const partCount = 3 // boot ID, network namespace and PID namespace
	parts := strings.Fields(id)
	if len(parts) != partCount {
		return "", ""
	}

	return parts[0], parts[1]
}

// Close closes the peers and the Server. It can be called more than once.
func (m *Machine) Close() error {
	var errs []error
	m.mu.Lock()
	for _, p := range m.peers {
		err := p.close()
		errs = append(errs, err)
	}

	m.peers = nil
	isFirstCall := !m.isClosed
	m.isClosed = true
	m.mu.Unlock()
	hasServer := m.Server != nil // false if Open has failed before it could start the Server
	if hasServer && isFirstCall {
		err := m.Server.Close()
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// withDefaultTimeout limits ctx to Config.Timeout from now, unless ctx already has a deadline.
func (m *Machine) withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return control.WithDefaultTimeout(ctx, m.cfg.Timeout)
}

// yield lets other ranks run on this processor, while this rank waits for them.
func (m *Machine) yield() {
	if m.sharesProcess.Load() {
		runtime.Gosched() // lets other goroutines run
		return
	}

	sys.Yield() // lets other processes run
}

// checkInterrupt calls Config.Interrupted, which ends a wait by returning an error.
//
// It converts a panic to an error, because the caller may hold locks. The error contains the name
// under which users have set the function: Options.Interrupted.
func (m *Machine) checkInterrupt() (err error) {
	callback := m.cfg.Interrupted
	if callback == nil {
		return nil
	}

	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("Options.Interrupted panicked: %v: %w\n\n%s",
				cause, driver.ErrInterrupted, debug.Stack())
		}
	}()
	return callback()
}
