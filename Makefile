# The targets only call scripts, which also work without make.
.PHONY: all help setup check lib wheel release python-lint python-test lines ci

all: wheel

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## what development on Debian needs: compilers, PyTorch, linters
	scripts/setup.sh

check: ## build, vet, gofmt, rules and the short tests: a minute
	scripts/check.sh

lib: ## libsymmem.so, next to the Python package
	python/scripts/library.sh

wheel: ## dist/symmem-*.whl, with the library and the command inside
	python/scripts/wheel.sh

release: ## the files of a release, tested: make release MODULE=example.com/symmem VERSION=0.1.0
	scripts/release.sh --module "$(MODULE)" --version "$(VERSION)" --check

python-lint: ## ruff and mypy --strict
	python/scripts/lint.sh

python-test: ## pytest on the host backend
	python/scripts/test.sh

lines: ## lines of Go code by package, outside of tests, without comments and blank lines
	@go run ./internal/house/lines

ci: ## everything that must pass before a change is merged
	.ci/run
