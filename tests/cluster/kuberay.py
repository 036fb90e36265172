"""The fields of KubeRay's RayCluster and RayJob (ray.io/v1) that these tests know, as JSON Schema.

KubeRay's own CustomResourceDefinitions are in no package that can be installed here, so this is written from its documented API: it
catches a misspelt field, a wrong type, a missing required field, and can be wrong about a field of a version yet to come. Pod templates
are left open here, for Kubernetes' own schema checks them.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]


def _object(required: tuple[str, ...] = (), **properties: JsonObject) -> JsonObject:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": "number", "minimum": 0}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_OPEN = {"type": "object"}
_METADATA = _object(
    ("name",), name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47}, labels=_TEXTS, annotations=_TEXTS
)

_HEAD = _object(
    ("template",),
    template=_OPEN, headService=_OPEN, enableIngress=_FLAG, resources=_TEXTS, labels=_TEXTS, rayStartParams=_TEXTS,
    serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
)  # fmt: skip
_WORKERS = _object(
    ("groupName", "minReplicas", "maxReplicas", "template"),
    groupName=_TEXT, replicas=_COUNT, minReplicas=_COUNT, maxReplicas=_COUNT, idleTimeoutSeconds=_COUNT, resources=_TEXTS, labels=_TEXTS,
    rayStartParams=_TEXTS, template=_OPEN, scaleStrategy=_OPEN, numOfHosts=_COUNT, suspend=_FLAG,
)  # fmt: skip
_CLUSTER = _object(
    ("headGroupSpec",),
    rayVersion=_TEXT, authOptions=_object(("mode",), mode={"enum": ["token", "disabled"]}), suspend=_FLAG, managedBy=_TEXT,
    enableInTreeAutoscaling=_FLAG, autoscalerOptions=_OPEN, gcsFaultToleranceOptions=_OPEN, headServiceAnnotations=_TEXTS,
    upgradeStrategy=_OPEN, headGroupSpec=_HEAD, workerGroupSpecs={"type": "array", "items": _WORKERS},
)  # fmt: skip
_JOB = _object(
    (),
    entrypoint=_TEXT, submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]}, backoffLimit=_COUNT,
    shutdownAfterJobFinishes=_FLAG, ttlSecondsAfterFinished=_COUNT, activeDeadlineSeconds=_COUNT, suspend=_FLAG, runtimeEnvYAML=_TEXT,
    jobId=_TEXT, metadata=_TEXTS, clusterSelector=_TEXTS, submitterConfig=_object(backoffLimit=_COUNT), submitterPodTemplate=_OPEN,
    managedBy=_TEXT, deletionStrategy=_OPEN, entrypointNumCpus=_NUMBER, entrypointNumGpus=_NUMBER, entrypointResources=_TEXT,
    rayClusterSpec=_CLUSTER,
)  # fmt: skip


def _resource(kind: str, spec: JsonObject) -> JsonObject:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"), apiVersion={"const": "ray.io/v1"}, kind={"const": kind}, metadata=_METADATA, spec=spec
    )


RAYCLUSTER = _resource("RayCluster", _CLUSTER)
RAYJOB = _resource("RayJob", _JOB)
