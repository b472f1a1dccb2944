package live

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"symmem/internal/sys"
)

// Config describes a rank for Open.
type Config struct {
	// Job is the name of the job's folder, which is the same on all ranks and unique to the job.
	Job  string
	Rank int
	// Address is SocketsOnly or the TCP address at which one rank per machine serves its ranks.
	Address string
	// Token consists of at least 16 letters, digits, "-" and "_". By default, the first Server of the
	// job on the machine generates it.
	Token string
	// Snapshot returns the current state of the rank, with up to eventLimit events per pool. It must
	// be safe for concurrent use.
	Snapshot func(eventLimit int) Snapshot
	Log      *slog.Logger
}

// SocketsOnly is the address that disables TCP.
const SocketsOnly = "unix"

// CheckAddress returns an error unless the address is SocketsOnly or "host:port".
func CheckAddress(address string) error {
	if address == SocketsOnly {
		return nil
	}

	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}

	if err != nil {
		return fmt.Errorf("%q is neither %q nor host:port, such as localhost:9400", address, SocketsOnly)
	}

	return nil
}

const (
	// All ranks of the machine are connected to the Unix socket of the lowest rank.
	maxLocalConns  = 1024
	maxConns       = 64
	maxHeaderBytes = 8 << 10
	// A client must send a request within requestTimeout and read the response within writeTimeout.
	requestTimeout = 5 * time.Second
	writeTimeout   = 20 * time.Second
	idleTimeout    = 30 * time.Second
	retryInterval  = 2 * time.Second       // between attempts to serve an address that is in use
	searchInterval = 20 * time.Millisecond // between two searches for the lowest rank
)

// Server serves the state of a rank on a Unix socket. While no lower rank runs on the machine, it
// serves all ranks of the machine over TCP. A Server is safe for concurrent use.
type Server struct {
	cfg     Config
	folder  string
	token   string
	local   *http.Server
	tasks   sync.WaitGroup
	ctx     context.Context // done after Close
	cancel  context.CancelFunc
	address atomic.Pointer[net.TCPAddr] // nil if this rank does not serve over TCP
}

// Open creates the rank's socket and starts serving it.
func Open(cfg Config) (*Server, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("serving rank %d on a Unix socket: %w", cfg.Rank, err)
	}

	return s, nil
}

func open(cfg Config) (*Server, error) {
	if cfg.Token == "" {
		cfg.Token = rand.Text()
	}

	if !validToken.MatchString(cfg.Token) {
		return nil, errors.New("SYMMEM_HTTP_TOKEN must consist of 16 to 512 letters, digits, - and _: " +
			"generate a token, for example with openssl rand -hex 16")
	}

	root := Root()
	s := &Server{cfg: cfg, folder: filepath.Join(root, cfg.Job)}
	for _, folder := range []string{root, s.folder} {
		if err := createFolder(folder); err != nil {
			return nil, err
		}
	}

	Sweep()
	var err error
	if s.token, err = shareToken(s.folder, cfg.Token); err != nil {
		return nil, err
	}

	listener, err := listenUnix(s.folder, cfg.Rank)
	if err != nil {
		removeFolderIfUnused(s.folder)
		return nil, err
	}

	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.local = newHTTPServer(s.socketHandler())
	s.tasks.Go(func() {
		_ = s.local.Serve(&limiter{Listener: listener, limit: maxLocalConns}) // returns after Close
	})
	return s, nil
}

// A longer token would not fit into the header of a request.
var validToken = regexp.MustCompile(`^[A-Za-z0-9_-]{16,512}$`)

// shareToken returns the token in the folder of a job. If there is none, it stores the given token.
func shareToken(folder, token string) (string, error) {
	path := filepath.Join(folder, tokenFile)
	temporaryPath := filepath.Join(folder, "."+rand.Text())
	if err := os.WriteFile(temporaryPath, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}

	err := os.Link(temporaryPath, path)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}

	if err := errors.Join(err, os.Remove(temporaryPath)); err != nil {
		return "", err
	}

	return Token(folder)
}

// Token returns the token of the job with the given folder.
func Token(folder string) (string, error) {
	text, err := os.ReadFile(filepath.Join(folder, tokenFile))
	if err != nil {
		return "", fmt.Errorf("reading the token of a job: %w", err)
	}

	return strings.TrimSpace(string(text)), nil
}

func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

// Start makes the rank serve the TCP address while it is the lowest on its machine. All ranks of
// the machine must already have opened their Servers, so that no lower rank appears later.
func (s *Server) Start() {
	if s.cfg.Address != SocketsOnly {
		s.tasks.Go(s.serveWhileLowest)
	}
}

// Close closes all connections, without waiting for responses, and removes the socket.
func (s *Server) Close() error {
	s.cancel()
	_ = os.Remove(socketPath(s.folder, s.cfg.Rank))
	err := s.local.Close()
	s.tasks.Wait()
	removeFolderIfUnused(s.folder)
	return err
}

// Address returns the TCP address at which this rank serves, or "".
func (s *Server) Address() string {
	if a := s.address.Load(); a != nil {
		return a.String()
	}

	return ""
}

func (s *Server) serveWhileLowest() {
	warned := false
	for s.ctx.Err() == nil {
		if s.waitForLowerRank() {
			s.pause(searchInterval)
			continue
		}

		if err := s.serveAddress(); err != nil && !warned {
			s.cfg.Log.Warn("symmem: serving the live view: "+err.Error()+"; this rank tries again",
				"rank", s.cfg.Rank, "address", s.cfg.Address)
			warned = true
		}

		s.pause(retryInterval)
	}
}

func (s *Server) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// waitForLowerRank waits until the lowest running rank exits. It returns false at once if no lower
// rank is running.
func (s *Server) waitForLowerRank() bool {
	ranks, err := Ranks(s.folder)
	if err != nil {
		return false
	}

	for _, rank := range ranks {
		if rank >= s.cfg.Rank {
			break
		}

		if s.waitForExit(rank) {
			return true
		}
	}

	return false
}

// waitForExit waits until a rank exits. It returns false at once if the rank has already exited.
func (s *Server) waitForExit(rank int) bool {
	c, err := net.Dial("unix", socketPath(s.folder, rank))
	if err != nil {
		return false
	}
	defer context.AfterFunc(s.ctx, func() { _ = c.Close() })()
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", alivePath)
	for buffer := make([]byte, 512); err == nil; {
		_, err = c.Read(buffer)
	}

	_ = c.Close()
	return true
}

func (s *Server) serveAddress() error {
	listener, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return err
	}

	sys.CloseInForks(listener) // child processes must not keep the address in use
	at := listener.Addr().(*net.TCPAddr)
	s.address.Store(at)
	defer s.address.Store(nil)
	server := newHTTPServer(s.tcpHandler(at.IP.IsLoopback()))
	defer context.AfterFunc(s.ctx, func() { _ = server.Close() })()
	s.cfg.Log.Info("symmem: live view of the ranks of this machine", "rank", s.cfg.Rank,
		"address", "http://"+at.String(), "token", filepath.Join(s.folder, tokenFile))
	err = server.Serve(&limiter{Listener: listener, limit: maxConns})
	if s.ctx.Err() != nil {
		return nil
	}

	return errors.Join(err, server.Close())
}
