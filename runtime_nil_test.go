package symmem_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"symmem"
)

// excludedMethods lists the methods that TestNilArgumentsDoNotPanic skips: methods that end the
// use of the receiver, and Pool.Map, which exists only in tests.
var excludedMethods = []string{"Close", "Abort", "End", "Forget", "Free", "Map"}

// TestNilArgumentsDoNotPanic calls the methods of the public types with zero values as arguments.
// It ignores their errors.
func TestNilArgumentsDoNotPanic(t *testing.T) {
	o := symmem.Options{Timeout: 2 * time.Second} // some calls wait for it
	runRanks(t, 1, o, func(r *rank) {
		p := r.pool()
		b := r.window(p, 4096)
		s := r.stream()
		e, err := r.NewEvent()
		r.ok(err)
		r.ok(s.BeginCapture())
		graph, err := s.EndCapture()
		r.ok(err)
		scope := p.Begin(r.World())
		for _, receiver := range []any{
			r.Runtime, r.World(), p, &b, s, e, graph, scope, b.Memory(), r.Interop(),
		} {
			v := reflect.ValueOf(receiver)
			for i := range v.NumMethod() {
				method := v.Type().Method(i)
				if slices.Contains(excludedMethods, method.Name) {
					continue
				}

				callWithZeros(t, fmt.Sprintf("%v.%s", v.Type(), method.Name), v.Method(i))
			}
		}

		// Wait for work that the calls may have queued. Its errors do not matter either.
		_ = r.DefaultStream().Synchronize(r.ctx)
		_ = s.Synchronize(r.ctx)
		// Last, because the loop calls other methods of the scope, which End would make useless.
		callWithZeros(t, "Scope.End", reflect.ValueOf(scope.End))
	})
}

// callWithZeros calls f with the zero value of each parameter, and fails the test if f panics.
func callWithZeros(t *testing.T, name string, f reflect.Value) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s panics: %v", name, p)
		}
	}()
	args := make([]reflect.Value, f.Type().NumIn())
	for i := range args {
		args[i] = reflect.Zero(f.Type().In(i))
	}

	if f.Type().IsVariadic() {
		args = args[:len(args)-1] // no arguments for the variadic parameter
	}

	f.Call(args)
}

// TestNilContext checks that calls treat a nil context as one that never ends.
func TestNilContext(t *testing.T) {
	var nilCtx context.Context
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const count, value = 4, 1
		m := r.alloc(r.pool(), 4096).Memory()
		r.ok(r.World().Check(nilCtx))
		r.ok(r.World().AllReduce(nilCtx, m, m, count, symmem.Float32, symmem.Sum, nil))
		r.ok(r.World().Agree(nilCtx, "a value", value))
		r.ok(r.DefaultStream().Synchronize(nilCtx))
	})
}

// TestNilFunctionIsRejected queues a nil function. The call must fail, and the stream must not.
func TestNilFunctionIsRejected(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		s := r.stream()
		r.wantErr(s.Host(nil), symmem.ErrInvalid)
		r.ok(s.Synchronize(r.ctx))
	})
}
