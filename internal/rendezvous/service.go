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

// service shares the server at one endpoint among all members in this process. The last member to
// leave closes the server.
type service struct {
	endpoint Endpoint
	server   *Server

	members int
	// left holds, for each complete world, the keys that the other ranks set when they leave. It is
	// guarded by services.mu.
	left [][]string
}

var services = struct {
	mu        sync.Mutex
	byAddress map[string]*service
}{byAddress: map[string]*service{}}

// serve adds a member to the service at an endpoint. The first member opens the service. If the
// address is in use, serve logs a warning and retries, because rank 0 of an earlier attempt may
// still use it. If another rank 0 of the same job uses the address, serve returns an error. It
// repeats this check, because that rank may claim its rank later.
func serve(ctx context.Context, endpoint Endpoint, w *World) (*service, error) {
	reported := false
	var lastCheck time.Time
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		s, err := tryServe(endpoint)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
		advice, ownerErr := addressInUse(ctx, endpoint, uint32(os.Geteuid()))
		if ownerErr == nil && time.Since(lastCheck) > claimTime {
			ownerErr = checkUnclaimed(ctx, endpoint, w)
			lastCheck = time.Now()
		}
		if ownerErr != nil {
			return nil, ownerErr
		}
		if !reported {
			reported = true
			slog.Warn("symmem: the address of the store is taken; this rank tries again until its "+
				"timeout: "+advice, "address", endpoint.Address, "error", err)
		}
		if !sleepWithJitter(ctx, pause) {
			return nil, fmt.Errorf("%w: %w; %s", context.Cause(ctx), err, advice)
		}
	}
}

func tryServe(endpoint Endpoint) (*service, error) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s := services.byAddress[endpoint.Address]
	if s != nil && s.endpoint.Token != endpoint.Token {
		return nil, fmt.Errorf("this process serves a store at %s already, with another token",
			endpoint.Address)
	}
	if s == nil {
		server, err := Listen(listenAddress(endpoint.Address), endpoint.Token)
		if err != nil {
			return nil, err
		}
		s = &service{endpoint: endpoint, server: server}
		services.byAddress[endpoint.Address] = s
	}
	s.members++
	return s, nil
}

func (s *service) addWorld(left []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.left = append(s.left, left)
}

// leave removes a member. For the last member, it returns the keys to wait for.
func (s *service) leave() (last bool, left [][]string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	if s.members--; s.members > 0 {
		return false, nil
	}
	delete(services.byAddress, s.endpoint.Address)
	return true, s.left
}
