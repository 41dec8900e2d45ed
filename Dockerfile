# The course in a container: the answer for Windows, for rooms with a server, and for whoever wants nothing installed.
# docs/containers.md says how to build and run it, what was measured, and what was never run.
#
# Two targets:
#
#   course  what a learner needs, and the target that `docker build .` takes. It is installed from wheels, so the image
#           holds no repository, no tests and no tools, and belongs to root, so that no lesson can damage it. It needs
#           no make.
#   test    what a contributor needs: the repository, everything that requirements.txt pins, make and Chromium. The
#           course is installed in place by what `make setup` runs, so `make test` and the other targets of the
#           Makefile work inside.
#
# Both install packages before they copy the sources. They use stand-ins for the two packages, which hold no code and only
# let pip read what both pyproject.toml ask for. So torch is installed again only when a pyproject.toml, requirements.txt
# or a file of the set-up changes, and never because of a lesson.
#
# Nothing here needs a feature that only one builder has.

# The number of the user inside. On Linux, give your own (`id -u`) if a folder of yours is to be mounted.
ARG LEARNER_UID=1000

# A supported Python, on the Debian release that has the same one. A tag and no digest: what it names gets Debian's
# security updates.
FROM python:3.13-slim-trixie AS base

ARG LEARNER_UID
RUN groupadd --gid "$LEARNER_UID" learner \
    && useradd --uid "$LEARNER_UID" --gid learner --create-home --shell /bin/bash learner
# Downloads are not kept, because they would stay in the image. A kernel in the home folder must not take the place of the
# environment's.
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    JUPYTER_PREFER_ENV_PATH=1
LABEL org.opencontainers.image.title="Memory and performance optimisation on IPUs, hands on" \
      org.opencontainers.image.description="A Jupyter course on Graphcore IPUs with PopTorch, with a model of IPUs for CPUs" \
      org.opencontainers.image.licenses="MIT"
# address: labels
# end of address: labels
EXPOSE 8888


# What both pyproject.toml ask for, and packages without code that ask for it.
FROM base AS stand_ins
WORKDIR /stand_ins
COPY pyproject.toml requirements.txt setup.py ./
COPY ipu_model/pyproject.toml ipu_model/
COPY tools/bootstrap.py tools/setup.sh tools/
RUN mkdir -p src/ipu_course ipu_model/src/ipu_model ipu_model/src/poptorch \
    && touch README.md ipu_model/README.md ipu_model/LICENSE ipu_model/src/horovod.py ipu_model/src/popart.py \
    && echo '__version__ = "0"' >src/ipu_course/__init__.py \
    && cp src/ipu_course/__init__.py ipu_model/src/ipu_model/ \
    && cp src/ipu_course/__init__.py ipu_model/src/poptorch/


FROM base AS test
# Chromium and a font for the browser tests; git and ps for editors that work inside. Versions are those of the Debian
# release: Debian takes older ones away, so pins would soon stop the build. Builders differ in whom they give the folder
# of WORKDIR to, so it is made here, in the home folder, which a dev container gives to the user of the machine below.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        chromium fonts-dejavu-core git make procps \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=learner --group=learner /home/learner/repository
ARG LEARNER_UID
USER $LEARNER_UID
WORKDIR /home/learner/repository
COPY --from=stand_ins --chown=learner:learner /stand_ins ./
# The address of PyTorch's index of builds for CPUs, which saves some 4 GB. pip reads it as a variable.
ARG PIP_EXTRA_INDEX_URL
RUN sh tools/setup.sh
COPY --chown=learner:learner . .
RUN .venv/bin/python -m pip install --no-deps --no-build-isolation -e ./ipu_model -e .
CMD ["make", "test"]


FROM base AS environment
WORKDIR /opt/stand_ins
COPY --from=stand_ins /stand_ins ./
ARG PIP_EXTRA_INDEX_URL
# requirements.txt gives the versions. What is installed is what the two packages ask for, so no test tool comes along.
RUN python -m venv /opt/venv \
    && grep '==' requirements.txt >pins.txt \
    && /opt/venv/bin/python -m pip install "$(grep '^setuptools==' pins.txt)" \
    && /opt/venv/bin/python -m pip install --no-build-isolation --constraint pins.txt ./ipu_model '.[lab,programs]'


FROM environment AS wheels
WORKDIR /repository
COPY . .
# Beside the wheels, the settings that `make setup` gives JupyterLab: it asks nobody about news.
RUN /opt/venv/bin/python tools/wheels.py /dist \
    && rm /dist/*.tar.gz \
    && PYTHONPATH=tools /opt/venv/bin/python -c 'import bootstrap, json; print(json.dumps(bootstrap.LAB_DEFAULTS))' \
        >/dist/overrides.json


FROM environment AS course
COPY --from=wheels /dist /opt/dist
RUN /opt/venv/bin/python -m pip install --no-deps /opt/dist/*.whl \
    && mkdir -p /opt/venv/share/jupyter/lab/settings \
    && mv /opt/dist/overrides.json /opt/venv/share/jupyter/lab/settings/ \
    && install --directory --owner=learner --group=learner /home/learner/course
ENV PATH=/opt/venv/bin:$PATH \
    IPU_COURSE_PROGRESS=/home/learner/course/progress.json
ARG LEARNER_UID
USER $LEARNER_UID
WORKDIR /home/learner/course
# matplotlib lists the fonts once, and not in the first cell that draws.
RUN python -c 'import matplotlib.font_manager'
# The learner's copy of the notebooks (my_course) and their answers (progress.json). A volume of that name keeps them.
VOLUME ["/home/learner/course"]
# JupyterLab prints its address with a token; JUPYTER_TOKEN in the environment chooses another one.
CMD ["python", "-m", "ipu_course", "lab", "--no-browser", "--port=8888", "--", "--ip=0.0.0.0"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8888/api', timeout=8)"]
