package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// service is the server at one endpoint, for all members that this process has there: ranks may be
// in several worlds of one job at once, and all worlds meet at one address. It is open while it has
// a member; the last one takes it over, and closes it.
type service struct {
	at     Endpoint
	server *Server

	// Guarded by services.mu.
	members int
	// left has, for each world that its members were in, the keys that say that the others have
	// left it.
	left [][]string
}

// services are those that are open in this process, by address.
var services = struct {
	mu sync.Mutex
	at map[string]*service
}{at: map[string]*service{}}

// serve makes this rank a member of the service at an endpoint, which it opens if need be. An
// address that is in use may be that of our predecessor: the rank 0 of an earlier attempt, which
// waits for its last clients. Others are reported at once, and waited for if they are not rank 0 of
// the same job. That is asked again and again: a rank 0 that has just started claims its rank soon.
func serve(ctx context.Context, at Endpoint, w *World) (*service, error) {
	reported := false
	var asked time.Time
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		s, err := enter(at)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
		advice, foreign := addressInUse(ctx, at, uint32(os.Geteuid()))
		if foreign == nil && time.Since(asked) > claimTime {
			foreign = takenBy(ctx, at, w)
			asked = time.Now()
		}
		if foreign != nil {
			return nil, foreign
		}
		if !reported {
			reported = true
			slog.Warn("symmem: the address of the store is taken; this rank tries again until its "+
				"timeout: "+advice, "address", at.Address, "error", err)
		}
		if !sleepAround(ctx, pause) {
			return nil, fmt.Errorf("%w: %w; %s", context.Cause(ctx), err, advice)
		}
	}
}

// enter tries once.
func enter(at Endpoint) (*service, error) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s := services.at[at.Address]
	if s != nil && s.at.Token != at.Token {
		return nil, fmt.Errorf("this process serves a store at %s already, with another token",
			at.Address)
	}
	if s == nil {
		server, err := Listen(listenAddress(at.Address), at.Token)
		if err != nil {
			return nil, err
		}
		s = &service{at: at, server: server}
		services.at[at.Address] = s
	}
	s.members++
	return s, nil
}

// keep remembers a world to which all ranks came.
func (s *service) keep(left []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.left = append(s.left, left)
}

// leave ends one membership. The last member is told so, and when the others have left all worlds.
func (s *service) leave() (last bool, left [][]string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	if s.members--; s.members > 0 {
		return false, nil
	}
	delete(services.at, s.at.Address)
	return true, s.left
}
